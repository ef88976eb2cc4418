"""How much to reason, in words that chat templates know."""

from __future__ import annotations

_NEAREST = {"minimal": "low", "xhigh": "high", "max": "high"}  # templates know low, medium and high


def known_effort(effort: str) -> str:
    return _NEAREST.get(effort, effort)
