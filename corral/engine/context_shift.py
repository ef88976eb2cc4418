"""How much of a full context to forget: a pure decision."""

from __future__ import annotations


def plan_shift(
    n_tokens: int, n_ctx: int, n_prompt: int, n_keep: int, n_discard: int, adds_bos: bool
) -> tuple[int, int]:
    """(tokens to keep at the start, tokens to discard behind them)."""
    keep = (n_prompt if n_keep < 0 else n_keep) + adds_bos
    keep = min(keep, n_ctx - 4)
    left = n_tokens - keep
    discard = n_discard or left // 2
    return keep, max(1, min(discard, left - 1))
