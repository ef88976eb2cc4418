"""How much of a full context to forget: a pure decision."""

from __future__ import annotations

from collections.abc import Sequence

from corral.core.media import Span


def plan_shift(
    n_tokens: int, n_ctx: int, n_prompt: int, n_keep: int, n_discard: int, adds_bos: bool, n_system: int = 0
) -> tuple[int, int]:
    """(tokens to keep at the start, tokens to discard behind them).

    `n_keep` counts behind the `n_system` tokens of the system prompt, which has the BOS; else behind the BOS.
    """
    keep = n_prompt + adds_bos if n_keep < 0 else n_keep + (n_system or adds_bos)
    keep = min(keep, n_ctx - 4)
    left = n_tokens - keep
    discard = n_discard or left // 2
    return keep, max(1, min(discard, left - 1))


def spare_media(spans: Sequence[Span], keep: int, discard: int) -> tuple[int, int]:
    """The same, but so that every picture stays or goes as a whole: what is kept grows by the rest of one
    that it ends in, and so does what is discarded."""
    end = _whole(spans, keep + discard)
    longer = _whole(spans, keep)
    if longer >= end:  # there would be nothing to discard
        longer = max((span.start for span in spans if span.start < keep < span.end), default=keep)
    return longer, end - longer


def _whole(spans: Sequence[Span], n: int) -> int:
    return next((span.end for span in spans if span.start < n < span.end), n)
