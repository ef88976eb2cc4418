"""Name and order the routes in `/openapi.json` and on `/docs`, and say what each needs: one row for each
operation. There is no route without a row, or with one that does not say who may call it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from corral.core.key_role import Permission

_ALIASES = "Aliases"


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    path: str
    id: str  # as generated clients call it
    permission: Permission
    summary: str
    aliases: tuple[str, ...] = ()  # other paths


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    about: str
    operations: list[Operation]


# A group and what it is about; then its operations: id, permission, summary, other paths.
_TABLE = """
Chat and completions: Generate text, in OpenAI's and in llama-server's own format.
  post /v1/chat/completions | createChatCompletion | generate | Create a chat completion (OpenAI) |
    /chat/completions
  post /v1/completions | createOpenaiCompletion | generate | Complete a prompt (OpenAI)
  post /completion | createCompletion | generate | Complete a prompt | /completions
  post /infill | createInfill | generate | Fill in code between a prefix and a suffix
  post /v1/chat/completions/control | controlCompletion | use | Control an answer while it is generated |
    /chat/completions/control, /completion/control
  post /v1/audio/transcriptions | createTranscription | generate | Transcribe audio (OpenAI) |
    /audio/transcriptions
  post /apply-template | applyTemplate | use | Render a chat as a prompt
  post /v1/chat/completions/input_tokens | countChatTokens | use | Count the tokens of a chat |
    /chat/completions/input_tokens
Resumable streams: Streams that continue without their client (`X-Conversation-Id`).
  get /v1/stream | followStream | use | Follow a stream from an offset
  delete /v1/stream | stopStream | use | Stop a stream
  post /v1/streams/lookup | lookupStreams | use | Find streams by their conversations
OpenAI's Responses API: The same conversations, which the server can keep.
  post /v1/responses | createResponse | generate | Create a response (OpenAI) | /responses
  post /v1/responses/input_tokens | countResponseTokens | use | Count the tokens of a response (OpenAI) |
    /responses/input_tokens
  post /v1/responses/compact | compactResponse | generate | Replace a conversation by a summary (OpenAI)
  get /v1/responses/{id} | getResponse | use | Get a response, or its events
  delete /v1/responses/{id} | deleteResponse | use | Delete a response
  post /v1/responses/{id}/cancel | cancelResponse | use | Cancel a response in the background
  get /v1/responses/{id}/input_items | listInputItems | use | List the items that a response answers
  post /v1/conversations | createConversation | use | Create a conversation
  get /v1/conversations/{id} | getConversation | use | Get a conversation
  post /v1/conversations/{id} | updateConversation | use | Change a conversation
  delete /v1/conversations/{id} | deleteConversation | use | Delete a conversation
  get /v1/conversations/{id}/items | listConversationItems | use | List the items of a conversation
  post /v1/conversations/{id}/items | createConversationItems | use | Add items to a conversation
  get /v1/conversations/{id}/items/{item_id} | getConversationItem | use | Get an item of a conversation
  delete /v1/conversations/{id}/items/{item_id} | deleteConversationItem | use | Delete an item
Anthropic's API: The same conversations, for clients of the Messages API.
  post /v1/messages | createMessage | generate | Create a message (Anthropic)
  post /v1/messages/count_tokens | countMessageTokens | use | Count the tokens of a message (Anthropic)
  post /v1/messages/batches | createMessageBatch | use | Create many messages in the background (Anthropic)
  get /v1/messages/batches | listMessageBatches | use | List the batches (Anthropic)
  get /v1/messages/batches/{id} | getMessageBatch | use | Get a batch (Anthropic)
  post /v1/messages/batches/{id}/cancel | cancelMessageBatch | use | Cancel a batch (Anthropic)
  get /v1/messages/batches/{id}/results | getMessageBatchResults | use | Get a batch's results (Anthropic)
  delete /v1/messages/batches/{id} | deleteMessageBatch | use | Delete a batch (Anthropic)
Files and batches: Many requests at once, which run when nothing else does (`--batches`).
  post /v1/files | uploadFile | use | Upload a file (OpenAI)
  get /v1/files | listFiles | use | List the files (OpenAI)
  get /v1/files/{id} | getFile | use | Get what is known of a file (OpenAI)
  get /v1/files/{id}/content | getFileContent | use | Get the content of a file (OpenAI)
  delete /v1/files/{id} | deleteFile | use | Delete a file (OpenAI)
  post /v1/batches | createBatch | use | Run the requests in a file (OpenAI)
  get /v1/batches | listBatches | use | List the batches (OpenAI)
  get /v1/batches/{id} | getBatch | use | Get a batch (OpenAI)
  post /v1/batches/{id}/cancel | cancelBatch | use | Cancel a batch (OpenAI)
Ollama's API: The same model, for clients of ollama.
  post /api/chat | ollamaChat | generate | Answer a conversation (ollama)
  post /api/generate | ollamaGenerate | generate | Answer a prompt (ollama)
  post /api/embed | ollamaEmbed | generate | Create embeddings (ollama)
  post /api/embeddings | ollamaEmbeddings | generate | Create an embedding (older ollama)
  get /api/tags | ollamaTags | any | List the models (ollama)
  get /api/ps | ollamaProcesses | any | List the models in memory (ollama)
  post /api/show | ollamaShow | any | Describe the model (ollama)
  post /api/pull | ollamaPull | any | Pull the model that is there (ollama)
  get /api/version | ollamaVersion | any | Get the version (ollama)
Embeddings and reranking: Vectors, scores and labels of texts.
  post /v1/embeddings | createOpenaiEmbeddings | generate | Create embeddings (OpenAI)
  post /embedding | createEmbeddings | generate | Create embeddings | /embeddings
  post /embed | embedTexts | generate | Create embeddings (Text Embeddings Inference)
  post /rerank | rerankDocuments | generate | Rank documents by how well they fit a query |
    /reranking, /v1/rerank, /v1/reranking
  post /classify | classifyTexts | generate | Classify texts | /v1/classify
Tokens: Convert text to tokens and back.
  post /tokenize | tokenize | use | Convert text to tokens
  post /detokenize | detokenize | use | Convert tokens to text
  get /tokenizer_info | getTokenizerInfo | use | Get the tokenizer's special tokens and chat template (vLLM)
Slots and sessions: Inspect, save, restore and edit what slots hold (`--slots`).
  get /slots | listSlots | read | List the slots
  post /slots/{id_slot} | runSlotAction | use | Save, restore or edit a slot
  get /v1/slots/{id_slot}/info | getSlotInfo | read | Get the size of a slot's content and its messages |
    /slots/{id_slot}/info
  get /sessions | listSessions | read | List the saved sessions
  post /sessions/{id_session} | runSessionAction | use | Save, restore, fork or remove a session
LoRA adapters: List, weight, load and unload adapters.
  get /lora-adapters | listAdapters | read | List the adapters and their scales
  post /lora-adapters | setAdapterScales | change | Set the scales of the adapters
  post /lora-adapters/load | loadAdapter | change | Load an adapter
  post /lora-adapters/unload | unloadAdapter | change | Unload an adapter
Tools: Tools of MCP servers that the server runs (`--mcp-servers-config`).
  get /tools | listTools | use | List the tools
  post /tools | callTool | use | Call a tool
Saved chats: Conversations of the page that the server keeps (`--chats`).
  get /chats | listChats | use | List the saved chats
  get /chats/{id} | getChat | use | Get a saved chat
  put /chats/{id} | saveChat | use | Save a chat
  delete /chats/{id} | deleteChat | use | Delete a saved chat
Server and monitoring: The model, the server's settings, its health and what it is doing.
  get /v1/models | listModels | public | List the models | /models
  get /v1/models/{name} | getModel | any | Get a model by its name
  post /models | downloadModel | change | Download a model (`--models-cache`)
  delete /models | removeModel | change | Delete a downloaded model
  post /models/load | loadModel | change | Load a model (`--models-dir`)
  post /models/unload | unloadModel | change | Unload a model
  get /models/sse | streamModels | any | Stream the states of the models
  get /props | getProps | public | Get the server's properties
  post /props | setProps | change | Change the server's properties
  get /health | getHealth | public | Check that the server is healthy | /v1/health
  get /ready | getReadiness | public | Check that a request would be accepted now
  get /engines | listEngines | read | List the engines (`--engines`)
  post /engines/update | updateEngines | change | Replace the model file of all engines
  post /engines/{id_engine}/drain | drainEngine | change | Replace an engine without an error
  get /v1/usage | getUsage | any | Get the usage of the key by day
  get /metrics | getMetrics | read | Get metrics for Prometheus
  get /monitor/events | streamEvents | read | Stream what the server is doing
  get /monitor/requests/{n} | explainRequest | read | Explain one of the last requests
"""


def _parse(table: str) -> tuple[Group, ...]:
    groups: list[Group] = []
    for line in table.replace(" |\n    ", " | ").strip().splitlines():
        if not line.startswith(" "):
            name, _, about = line.partition(": ")
            groups.append(Group(name, about, []))
            continue
        route, id, permission, summary, *aliases = line.strip().split(" | ")
        method, _, path = route.partition(" ")
        others = tuple(aliases[0].split(", ")) if aliases else ()
        groups[-1].operations.append(Operation(method, path, id, Permission(permission), summary, others))
    return tuple(groups)


GROUPS = _parse(_TABLE)
_PERMISSIONS = {
    (each.method, path): each.permission
    for group in GROUPS
    for each in group.operations
    for path in (each.path, *each.aliases)
}


def permission_for(method: str, path: str) -> Permission:
    """Return what the operation of a route needs. Raises KeyError if the table has no row for it."""
    return _PERMISSIONS[method.lower(), path]


def paths_with(permission: Permission) -> Iterator[str]:
    """Yield the paths of operations that need this permission, with their aliases."""
    return (path for (_, path), needed in _PERMISSIONS.items() if needed is permission)


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
                yield _ALIASES, Operation(each.method, path, id, each.permission, f"Same as {each.path}")


def _names(group: str, operation: Operation) -> dict[str, Any]:
    return {"tags": [group], "summary": operation.summary, "operationId": operation.id}
