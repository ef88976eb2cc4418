"""Name and order the routes in `/openapi.json` and on `/docs`: one row for each operation.

A route that is missing here is described last, under the name of its function; a test asks for its row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_ALIASES = "Aliases"


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    path: str
    id: str  # as generated clients call it
    summary: str
    aliases: tuple[str, ...] = ()  # other paths


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    about: str
    operations: list[Operation]


# A group and what it is about; then its operations: id, summary, other paths.
_TABLE = """
Chat and completions: Generate text, in OpenAI's and in llama-server's own format.
  post /v1/chat/completions | createChatCompletion | Create a chat completion (OpenAI) | /chat/completions
  post /v1/completions | createOpenaiCompletion | Complete a prompt (OpenAI)
  post /completion | createCompletion | Complete a prompt | /completions
  post /infill | createInfill | Fill in code between a prefix and a suffix
  post /v1/chat/completions/control | controlCompletion | Control an answer while it is generated |
    /chat/completions/control, /completion/control
  post /v1/audio/transcriptions | createTranscription | Transcribe audio (OpenAI) | /audio/transcriptions
  post /apply-template | applyTemplate | Render a chat as a prompt
  post /v1/chat/completions/input_tokens | countChatTokens | Count the tokens of a chat |
    /chat/completions/input_tokens
Resumable streams: Streams that continue without their client (`X-Conversation-Id`).
  get /v1/stream | followStream | Follow a stream from an offset
  delete /v1/stream | stopStream | Stop a stream
  post /v1/streams/lookup | lookupStreams | Find streams by their conversations
OpenAI's Responses API: The same conversations, which the server can keep.
  post /v1/responses | createResponse | Create a response (OpenAI) | /responses
  post /v1/responses/input_tokens | countResponseTokens | Count the tokens of a response (OpenAI) |
    /responses/input_tokens
  post /v1/responses/compact | compactResponse | Replace a conversation by a summary (OpenAI)
  get /v1/responses/{id} | getResponse | Get a response, or its events
  delete /v1/responses/{id} | deleteResponse | Delete a response
  post /v1/responses/{id}/cancel | cancelResponse | Cancel a response in the background
  get /v1/responses/{id}/input_items | listInputItems | List the items that a response answers
  post /v1/conversations | createConversation | Create a conversation
  get /v1/conversations/{id} | getConversation | Get a conversation
  post /v1/conversations/{id} | updateConversation | Change a conversation
  delete /v1/conversations/{id} | deleteConversation | Delete a conversation
  get /v1/conversations/{id}/items | listConversationItems | List the items of a conversation
  post /v1/conversations/{id}/items | createConversationItems | Add items to a conversation
  get /v1/conversations/{id}/items/{item_id} | getConversationItem | Get an item of a conversation
  delete /v1/conversations/{id}/items/{item_id} | deleteConversationItem | Delete an item of a conversation
Anthropic's API: The same conversations, for clients of the Messages API.
  post /v1/messages | createMessage | Create a message (Anthropic)
  post /v1/messages/count_tokens | countMessageTokens | Count the tokens of a message (Anthropic)
  post /v1/messages/batches | createMessageBatch | Create many messages in the background (Anthropic)
  get /v1/messages/batches | listMessageBatches | List the batches (Anthropic)
  get /v1/messages/batches/{id} | getMessageBatch | Get a batch (Anthropic)
  post /v1/messages/batches/{id}/cancel | cancelMessageBatch | Cancel a batch (Anthropic)
  get /v1/messages/batches/{id}/results | getMessageBatchResults | Get the results of a batch (Anthropic)
  delete /v1/messages/batches/{id} | deleteMessageBatch | Delete a batch (Anthropic)
Files and batches: Many requests at once, which run when nothing else does (`--batches`).
  post /v1/files | uploadFile | Upload a file (OpenAI)
  get /v1/files | listFiles | List the files (OpenAI)
  get /v1/files/{id} | getFile | Get what is known of a file (OpenAI)
  get /v1/files/{id}/content | getFileContent | Get the content of a file (OpenAI)
  delete /v1/files/{id} | deleteFile | Delete a file (OpenAI)
  post /v1/batches | createBatch | Run the requests in a file (OpenAI)
  get /v1/batches | listBatches | List the batches (OpenAI)
  get /v1/batches/{id} | getBatch | Get a batch (OpenAI)
  post /v1/batches/{id}/cancel | cancelBatch | Cancel a batch (OpenAI)
Ollama's API: The same model, for clients of ollama.
  post /api/chat | ollamaChat | Answer a conversation (ollama)
  post /api/generate | ollamaGenerate | Answer a prompt (ollama)
  post /api/embed | ollamaEmbed | Create embeddings (ollama)
  post /api/embeddings | ollamaEmbeddings | Create an embedding (older ollama)
  get /api/tags | ollamaTags | List the models (ollama)
  get /api/ps | ollamaProcesses | List the models in memory (ollama)
  post /api/show | ollamaShow | Describe the model (ollama)
  post /api/pull | ollamaPull | Pull the model that is there (ollama)
  get /api/version | ollamaVersion | Get the version (ollama)
Embeddings and reranking: Vectors, scores and labels of texts.
  post /v1/embeddings | createOpenaiEmbeddings | Create embeddings (OpenAI)
  post /embedding | createEmbeddings | Create embeddings | /embeddings
  post /embed | embedTexts | Create embeddings (Text Embeddings Inference)
  post /rerank | rerankDocuments | Rank documents by how well they fit a query |
    /reranking, /v1/rerank, /v1/reranking
  post /classify | classifyTexts | Classify texts | /v1/classify
Tokens: Convert text to tokens and back.
  post /tokenize | tokenize | Convert text to tokens
  post /detokenize | detokenize | Convert tokens to text
  get /tokenizer_info | getTokenizerInfo | Get the tokenizer's special tokens and chat template (vLLM)
Slots and sessions: Inspect, save, restore and edit what slots hold (`--slots`).
  get /slots | listSlots | List the slots
  post /slots/{id_slot} | runSlotAction | Save, restore or edit a slot
  get /v1/slots/{id_slot}/info | getSlotInfo | Get the size of a slot's content and its messages |
    /slots/{id_slot}/info
  get /sessions | listSessions | List the saved sessions
  post /sessions/{id_session} | runSessionAction | Save, restore, fork or remove a session
LoRA adapters: List, weight, load and unload adapters.
  get /lora-adapters | listAdapters | List the adapters and their scales
  post /lora-adapters | setAdapterScales | Set the scales of the adapters
  post /lora-adapters/load | loadAdapter | Load an adapter
  post /lora-adapters/unload | unloadAdapter | Unload an adapter
Tools: Tools of MCP servers that the server runs (`--mcp-servers-config`).
  get /tools | listTools | List the tools
  post /tools | callTool | Call a tool
Saved chats: Conversations of the page that the server keeps (`--chats`).
  get /chats | listChats | List the saved chats
  get /chats/{id} | getChat | Get a saved chat
  put /chats/{id} | saveChat | Save a chat
  delete /chats/{id} | deleteChat | Delete a saved chat
Server and monitoring: The model, the server's settings, its health and what it is doing.
  get /v1/models | listModels | List the models | /models
  get /v1/models/{name} | getModel | Get a model by its name
  post /models | downloadModel | Download a model (`--models-cache`)
  delete /models | removeModel | Delete a downloaded model
  post /models/load | loadModel | Load a model (`--models-dir`)
  post /models/unload | unloadModel | Unload a model
  get /models/sse | streamModels | Stream the states of the models
  get /props | getProps | Get the server's properties
  post /props | setProps | Change the server's properties
  get /health | getHealth | Check that the server is healthy | /v1/health
  get /ready | getReadiness | Check that a request would be accepted now
  get /engines | listEngines | List the engines (`--engines`)
  post /engines/update | updateEngines | Replace the model file of all engines
  post /engines/{id_engine}/drain | drainEngine | Replace an engine without an error
  get /v1/usage | getUsage | Get the usage of the key by day
  post /v1/receipts/replay | replayReceipt | Evaluate the answer of a receipt again
  get /metrics | getMetrics | Get metrics for Prometheus
  get /monitor/events | streamEvents | Stream what the server is doing
  get /monitor/requests/{n} | explainRequest | Explain one of the last requests
  get /monitor/day | getDay | Get the last 24 hours of models and keys
"""


def _parse(table: str) -> tuple[Group, ...]:
    groups: list[Group] = []
    for line in table.replace(" |\n    ", " | ").strip().splitlines():
        if not line.startswith(" "):
            name, _, about = line.partition(": ")
            groups.append(Group(name, about, []))
            continue
        route, id, summary, *aliases = line.strip().split(" | ")
        method, _, path = route.partition(" ")
        others = tuple(aliases[0].split(", ")) if aliases else ()
        groups[-1].operations.append(Operation(method, path, id, summary, others))
    return tuple(groups)


GROUPS = _parse(_TABLE)


def name_operations(paths: dict[str, Any]) -> dict[str, Any]:
    """Return the paths of a description in the order and with the names of the table; aliases come last."""
    named = {(each.method, each.path): (group, each) for group, each in _rows()}
    order = list(dict.fromkeys(path for _, path in named))
    known = sorted(paths, key=lambda path: order.index(path) if path in order else len(order))
    return {
        path: {
            method: {**operation, **_names(*named[method, path])} if (method, path) in named else operation
            for method, operation in paths[path].items()
        }
        for path in known
    }


def tags() -> list[dict[str, str]]:
    """Return the groups in their order, with descriptions."""
    about = [{"name": group.name, "description": group.about} for group in GROUPS]
    return [*about, {"name": _ALIASES, "description": "Other paths of the operations above."}]


def _rows() -> Iterator[tuple[str, Operation]]:
    for group in GROUPS:
        for operation in group.operations:
            yield group.name, operation
    for group in GROUPS:
        for each in group.operations:
            for path in each.aliases:
                id = f"{each.id}_{re.sub(r'[^A-Za-z0-9]+', '_', path).strip('_')}"
                yield _ALIASES, Operation(each.method, path, id, f"Same as {each.path}")


def _names(group: str, operation: Operation) -> dict[str, Any]:
    return {"tags": [group], "summary": operation.summary, "operationId": operation.id}
