"""`/v1/responses/compact`: replace a conversation by its user messages and a summary by the model."""

from __future__ import annotations

import time
from typing import Any

from corral.api.render.warning import render_warnings
from corral.api.responses.item import Item, item_id
from corral.api.responses.message_builder import seal
from corral.api.responses.schema import CompactRequest, ResponsesRequest
from corral.core.errors import InvalidRequest
from corral.schema.parse import parse_request

_ASK = (
    "Summarize this conversation for an assistant that continues it without seeing it: the task, decisions, "
    "facts, results of tools, and what is left to do. Write the summary only."
)
_MAX_TOKENS = 2048
_KEPT = ("input", "instructions", "previous_response_id", "prompt_cache_key", "model")


def ask_summary(body: CompactRequest, n_ctx: int) -> ResponsesRequest:
    """Return the request that has the model write the summary."""
    given = {name: getattr(body, name) for name in _KEPT}
    items = body.input if body.input != "" else []
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    asked = {"role": "user", "content": _ASK}
    fields: dict[str, Any] = {
        **given,
        "input": [*items, asked] if isinstance(items, list) else items,
        "store": False,
        "temperature": 0.0,
        "seed": 0,
        "truncation": "auto",
        "max_output_tokens": min(_MAX_TOKENS, n_ctx // 4),
        "reasoning": {"effort": "none"},
    }
    request = parse_request(ResponsesRequest, {k: v for k, v in fields.items() if v not in (None, "")})
    return request.with_remarks_of(request, body.warnings)


def render_compaction(response: Item, items: list[Item]) -> dict[str, Any]:
    """Render the user messages among `items`, and the summary in a form to send back."""
    texts = [
        part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"]
    ]
    if not "".join(texts).strip():
        raise InvalidRequest("the model wrote no summary of it", field="input")
    asked = [item for item in items if item["type"] == "message" and item["role"] == "user"]
    id: str = response["id"]
    summary = {
        "id": item_id("compaction", id, 0),
        "type": "compaction",
        "encrypted_content": seal("".join(texts)),
    }
    return {
        "id": id,
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [*asked, summary],
        "usage": response["usage"],
        **render_warnings(response.get("warnings", ())),
    }
