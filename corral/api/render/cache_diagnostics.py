"""`prompt_cache_diagnostics` in OpenAI's shape: whether an earlier prompt was reused, and why not."""

from __future__ import annotations

from typing import Any

from corral.api.cache_diagnosis import Change, Diagnosis, Verdict

# The first of these that has changed is named.
_REASONS = {
    Change.MODEL: "model_changed",
    Change.TOOLS: "tools_changed",
    Change.EFFORT: "reasoning_effort_changed",
    Change.SYSTEM: "input_changed",
    Change.MESSAGES: "input_changed",
}
_TYPES = {
    Verdict.HIT: "cache_hit",
    Verdict.NOT_FOUND: "comparison_response_not_found",
    Verdict.UNAVAILABLE: "unavailable",
}


def render_prompt_cache_diagnostics(diagnosis: Diagnosis, n_cached: int) -> dict[str, Any]:
    outcome = diagnosis.conclude(n_cached)
    if outcome.verdict is not Verdict.MISS:
        return {"type": _TYPES[outcome.verdict]}
    reason = next((name for change, name in _REASONS.items() if change in outcome.changes), None)
    if reason is None:
        return {"type": "unavailable"}
    return {
        "type": "cache_miss",
        "reason": reason,
        "cache_missed_tokens": outcome.n_changed,
        "comparison_reusable_tokens": outcome.n_common,
    }
