"""What former versions had, and what to use instead: one table, for the messages that say so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_CONTINUED = "send a new request whose last message is the assistant's text so far"
_COMPARISON = '"cache_report": true tells where the prompt differs from the nearest cached one'
_FRONTS = "start several servers with --shared-storage, each with its own --engines or --ray"
_HISTORY = "scrape --metrics with Prometheus, or keep the usage of each day with --ledger"
_RECEIPTS = "send the same model, seed and request again"

OPTIONS: Mapping[str, tuple[str, str]] = {  # with what it took
    "--fronts": ("N", _FRONTS),
    "--monitor-history": ("FILE", _HISTORY),
    "--receipt-key": ("FILE", _RECEIPTS),
}
COMMANDS: Mapping[str, str] = {
    "compare": "run python -m bench.quality A.gguf B.gguf in Corral's source tree",
    "replay": _RECEIPTS,
}
FIELDS: Mapping[str, str] = {"receipt": _RECEIPTS}  # of request bodies
IGNORED_FIELDS: Mapping[
    str, str
] = {  # other servers have them, whose clients get a warning; a.b is in the object a
    "diagnostics": _COMPARISON,
    "prompt_cache_options.comparison_response_id": _COMPARISON,
}
ACTIONS: Mapping[str, str] = {"edit": _CONTINUED, "fork": _CONTINUED}  # on running answers
PATHS: Mapping[str, str] = {"/monitor/day": _HISTORY, "/v1/receipts/replay": _RECEIPTS}


def explain_removal(instead: str) -> str:
    return f"removed in 0.13: {instead}"


def find_fields(body: Mapping[str, Any], fields: Mapping[str, str]) -> Iterator[str]:
    """Yield those of the fields that a body has."""
    for field in fields:
        value: Any = body
        for name in field.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            yield field
