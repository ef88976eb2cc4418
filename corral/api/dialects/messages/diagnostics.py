"""Render `diagnostics.cache_miss_reason`: why the prompt of an earlier message was not reused."""

from __future__ import annotations

from typing import Any

from corral.api.cache_diagnosis import Change, Diagnosis, Verdict

# The API names the first of these that has changed; the rest it does not tell apart.
_REASONS = {
    Change.MODEL: "model_changed",
    Change.SYSTEM: "system_changed",
    Change.TOOLS: "tools_changed",
    Change.MESSAGES: "messages_changed",
}


def render_diagnostics(diagnosis: Diagnosis | None, n_cached: int) -> dict[str, Any] | None:
    """Return the reason; None: nothing to compare with, or nothing has changed."""
    reason = _render_reason(diagnosis, n_cached) if diagnosis is not None else None
    return {"cache_miss_reason": reason} if reason is not None else None


def _render_reason(diagnosis: Diagnosis, n_cached: int) -> dict[str, Any] | None:
    outcome = diagnosis.conclude(n_cached)
    if outcome.verdict is Verdict.HIT:
        return None
    if outcome.verdict is Verdict.NOT_FOUND:
        return {"type": "previous_message_not_found"}
    name = next((name for change, name in _REASONS.items() if change in outcome.changes), None)
    if name is None:
        return {"type": "unavailable"}
    return {"type": name, "cache_missed_input_tokens": outcome.n_missed}
