"""Normalize items: each gets a type, an id and typed parts, however the client wrote it."""

from __future__ import annotations

import re
from typing import Any

from corral.api.responses.part import as_parts
from corral.chat.message import MAX_MESSAGES
from corral.core.answer_id import draw_hex
from corral.core.errors import InvalidRequest

Item = dict[str, Any]

RESPONSE, CONVERSATION = "resp", "conv"
_ID = re.compile(r"(resp|conv)_([0-9a-f]{32})")
_ITEM_ID = re.compile(r"[a-z]{2,4}_([0-9a-f]{32})[0-9a-f]{8}")
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "compaction": "cmp",
    "mcp_list_tools": "mcpl",
    "mcp_call": "mcp",
    "mcp_approval_request": "mcpr",
    "mcp_approval_response": "mcpa",
}
_ROLES = ("user", "assistant", "system", "developer")


def new_id(kind: str) -> str:
    return f"{kind}_{draw_hex(16)}"


def is_id(id: str, kind: str) -> bool:
    found = _ID.fullmatch(id)
    return found is not None and found[1] == kind


def item_id(type: str, owner: str, index: int) -> str:
    """Return an id for an item, which contains that of its response or conversation."""
    return f"{_PREFIXES.get(type, 'item')}_{owner.partition('_')[2]}{index:08x}"


def owner_of(id: str) -> str | None:
    """Return the part after `resp_` or `conv_` of the id of an item's owner."""
    found = _ITEM_ID.fullmatch(id)
    return found[1] if found else None


def normalize_items(given: Any, field: str, owner: str, first: int = 0) -> list[Item]:
    """Return the client's items with ids of their own. `first`: the number of the first one."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list) or len(given) > MAX_MESSAGES:
        raise InvalidRequest(f"must be a string or a list of at most {MAX_MESSAGES} items", field=field)
    return [_normalize(item, f"{field}[{i}]", owner, first + i) for i, item in enumerate(given)]


def _normalize(item: Any, place: str, owner: str, index: int) -> Item:
    if not isinstance(item, dict):
        raise InvalidRequest("must be an object", field=place)
    kind = item.get("type")
    if kind is None:
        kind = "message" if "role" in item else "item_reference"
    if not isinstance(kind, str):
        raise InvalidRequest("must be a string", field=f"{place}.type")
    known = item.get("id")
    if known is not None and not isinstance(known, str):
        raise InvalidRequest("must be a string", field=f"{place}.id")
    whole: Item = {**item, "type": kind, "id": known or item_id(kind, owner, index)}
    if kind == "message":
        whole |= _message_fields(item, place)
    if kind != "item_reference":
        whole["status"] = item.get("status") or "completed"
    return whole


def _message_fields(item: Item, place: str) -> Item:
    role = item.get("role")
    if role not in _ROLES:
        raise InvalidRequest(f"must be one of {', '.join(_ROLES)}", field=f"{place}.role")
    parts = as_parts(item.get("content"), f"{place}.content")
    if role == "assistant":
        said = {"type": "output_text", "annotations": []}
        parts = [{**part, **said} if part["type"] == "input_text" else part for part in parts]
    return {"content": parts}
