"""How the routes are named and ordered in `/openapi.json` and on `/docs`: one row for each operation.

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
    operations: tuple[Operation, ...]


GROUPS = (
    Group(
        "Chat and completions",
        "Generate text, in OpenAI's and in llama-server's own format.",
        (
            Operation(
                "post",
                "/v1/chat/completions",
                "createChatCompletion",
                "Create a chat completion (OpenAI)",
                ("/chat/completions",),
            ),
            Operation(
                "post",
                "/v1/completions",
                "createOpenaiCompletion",
                "Complete a prompt (OpenAI)",
            ),
            Operation("post", "/completion", "createCompletion", "Complete a prompt", ("/completions",)),
            Operation("post", "/infill", "createInfill", "Fill in code between a prefix and a suffix"),
            Operation("post", "/apply-template", "applyTemplate", "Render a chat as a prompt"),
            Operation(
                "post",
                "/v1/chat/completions/input_tokens",
                "countChatTokens",
                "Count the tokens of a chat",
                ("/chat/completions/input_tokens",),
            ),
        ),
    ),
    Group(
        "Embeddings and reranking",
        "Vectors, scores and labels of texts.",
        (
            Operation("post", "/v1/embeddings", "createOpenaiEmbeddings", "Create embeddings (OpenAI)"),
            Operation("post", "/embedding", "createEmbeddings", "Create embeddings", ("/embeddings",)),
            Operation(
                "post",
                "/rerank",
                "rerankDocuments",
                "Rank documents by how well they fit a query",
                ("/reranking", "/v1/rerank", "/v1/reranking"),
            ),
            Operation("post", "/classify", "classifyTexts", "Classify texts", ("/v1/classify",)),
        ),
    ),
    Group(
        "Tokens",
        "Convert text to tokens and back.",
        (
            Operation("post", "/tokenize", "tokenize", "Convert text to tokens"),
            Operation("post", "/detokenize", "detokenize", "Convert tokens to text"),
        ),
    ),
    Group(
        "Slots and sessions",
        "Inspect, save, restore and edit what slots hold (`--slots`).",
        (
            Operation("get", "/slots", "listSlots", "List the slots"),
            Operation("post", "/slots/{id_slot}", "runSlotAction", "Save, restore or edit a slot"),
            Operation(
                "get",
                "/v1/slots/{id_slot}/info",
                "getSlotInfo",
                "Get the size of a slot's content and its messages",
                ("/slots/{id_slot}/info",),
            ),
            Operation("get", "/sessions", "listSessions", "List the saved sessions"),
            Operation(
                "post",
                "/sessions/{id_session}",
                "runSessionAction",
                "Save, restore, fork or remove a session",
            ),
        ),
    ),
    Group(
        "LoRA adapters",
        "List, weight, load and unload adapters.",
        (
            Operation("get", "/lora-adapters", "listAdapters", "List the adapters and their scales"),
            Operation("post", "/lora-adapters", "setAdapterScales", "Set the scales of the adapters"),
            Operation("post", "/lora-adapters/load", "loadAdapter", "Load an adapter"),
            Operation("post", "/lora-adapters/unload", "unloadAdapter", "Unload an adapter"),
        ),
    ),
    Group(
        "Saved chats",
        "Conversations of the page that the server keeps (`--chats`).",
        (
            Operation("get", "/chats", "listChats", "List the saved chats"),
            Operation("get", "/chats/{id}", "getChat", "Get a saved chat"),
            Operation("put", "/chats/{id}", "saveChat", "Save a chat"),
            Operation("delete", "/chats/{id}", "deleteChat", "Delete a saved chat"),
        ),
    ),
    Group(
        "Server and monitoring",
        "The model, the server's settings, its health and what it is doing.",
        (
            Operation("get", "/v1/models", "listModels", "List the models", ("/models",)),
            Operation("get", "/v1/models/{name}", "getModel", "Get a model by its name"),
            Operation("get", "/props", "getProps", "Get the server's properties"),
            Operation("post", "/props", "setProps", "Change the server's properties"),
            Operation("get", "/health", "getHealth", "Check that the server is healthy", ("/v1/health",)),
            Operation("get", "/ready", "getReadiness", "Check that a request would be accepted now"),
            Operation("get", "/metrics", "getMetrics", "Get metrics for Prometheus"),
            Operation("get", "/monitor/events", "streamEvents", "Stream what the server is doing"),
        ),
    ),
)


def name_operations(paths: dict[str, Any]) -> dict[str, Any]:
    """The paths of a description in the order of the table, with its names; aliases come last."""
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
    """What the groups are about, in their order."""
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
