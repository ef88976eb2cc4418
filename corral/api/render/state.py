"""Render the content of a slot for clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from corral.core.media import NO_TOKEN
from corral.generate.choice import Choice
from corral.generate.model import RenderContext


def render_boundaries(tokens: Sequence[int], eot: int) -> dict[str, Any]:
    """Find where messages end: at the token that ends a turn; the rest is a message too."""
    array = np.array(tokens, np.int64)
    ends = np.flatnonzero((array == eot) & (array != NO_TOKEN)).tolist()
    if len(array) and (not ends or ends[-1] != len(array) - 1):
        ends.append(len(array) - 1)
    starts = [0, *(end + 1 for end in ends)]
    spans = zip(starts, ends, strict=False)
    return {
        "n_tokens": len(array),
        "boundary_eot": eot,
        "n_messages": len(ends),
        "messages": [{"index": i, "start": start, "end": end} for i, (start, end) in enumerate(spans)],
    }


def render_cache_report(choice: Choice, context: RenderContext) -> dict[str, Any]:
    """Render the `cache_report`, if the request asks for one: where the prompt's prefix came from, and where
    the prompt first differs from the nearest cached sequence. How that continues is told only if nobody else
    can have sent it, or all may see it."""
    report, n_prompt = choice.report, len(choice.task.prompt)
    if report is None:
        return {}
    difference: dict[str, Any] | None = None
    if report.n_common < n_prompt:
        difference = {
            "index": report.n_common,
            "token": _public(report.token),
            "text": _text(report.token, context.piece),
        }
        if choice.task.tenant or context.shares_slots:
            difference["cached_token"] = _public(report.cached_token)
            difference["cached_text"] = _text(report.cached_token, context.piece)
    return {
        "cache_report": {
            "tier": report.tier.value,
            "id_slot": report.id_slot,
            "n_prompt": n_prompt,
            "n_cached": report.n_cached,
            "n_moved": report.n_moved,
            "is_checkpoint": report.is_checkpoint,
            "n_common": report.n_common,
            "first_difference": difference,
        }
    }


def _text(token: int | None, piece: Callable[[int], bytes]) -> str | None:
    return None if token is None or token < 0 else piece(token).decode("utf-8", "replace")


def _public(token: int | None) -> int | None:
    """Hide the placeholders of media."""
    return token if token is None else max(token, NO_TOKEN)
