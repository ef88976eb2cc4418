"""Render the settings of llama-server that say how an answer is parsed and drawn."""

from __future__ import annotations

from typing import Any

from corral.core.params import Constraint, GenerationParams

_TOKEN, _WORD = 0, 1  # types of triggers
_NOT_PARSED = {
    "chat_format": "Content-only",
    "reasoning_format": "none",
    "reasoning_in_content": False,
    "generation_prompt": "",
}


def render_parser_settings(params: GenerationParams) -> dict[str, Any]:
    """compat: `generation_settings`, `params`: a native answer is never parsed, and drawn on the host."""
    triggers = _render_triggers(params.constraint) if params.constraint else []
    return {
        "grammar_lazy": bool(triggers),
        "grammar_triggers": triggers,
        "preserved_tokens": list(params.preserved),
        **_NOT_PARSED,
        "backend_sampling": False,
    }


def _render_triggers(constraint: Constraint) -> list[dict[str, Any]]:
    words = (
        (constraint.trigger, *constraint.trigger_words) if constraint.trigger else constraint.trigger_words
    )
    return [
        *({"type": _WORD, "value": word} for word in words),
        *({"type": _TOKEN, "value": "", "token": token} for token in constraint.trigger_tokens),
    ]
