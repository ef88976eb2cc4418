"""Paginate lists as OpenAI does: `after`, `limit` and `order`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corral.api.openapi import query
from corral.api.query_number import query_number
from corral.core.errors import InvalidRequest

Item = dict[str, Any]  # with an `id`
_DEFAULT, _MOST = 20, 100
QUERIES = (
    query("after", "List items after the one with this id.", type="string"),
    query("limit", "The most items to list.", type="integer", minimum=1, maximum=_MOST, default=_DEFAULT),
    query("order", "Newest first, or oldest first.", enum=["desc", "asc"], default="desc"),
)


def render_page(items: list[Item], params: Mapping[str, str], most: int = _MOST) -> dict[str, Any]:
    """Return one page of `items`, which are oldest first. `most`: the highest limit."""
    order = params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest("must be 'asc' or 'desc'", field="order")
    ordered = items if order == "asc" else items[::-1]
    first = _find_after(ordered, params["after"]) if "after" in params else 0
    rest = ordered[first:]
    limit = query_number(params, "limit", _DEFAULT, 1, most)
    return render_list(rest[:limit], has_more=len(rest) > limit)


def render_list(items: list[Item], has_more: bool = False) -> dict[str, Any]:
    ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {}
    return {
        "object": "list",
        "data": items,
        "first_id": None,
        "last_id": None,
        **ends,
        "has_more": has_more,
    }


def _find_after(items: list[Item], id: str) -> int:
    for i, item in enumerate(items):
        if item["id"] == id:
            return i + 1
    raise InvalidRequest(f"item '{id:.128}' not found", field="after")
