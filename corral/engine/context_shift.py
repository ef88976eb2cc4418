"""How much of a full context to forget: a pure decision."""

from __future__ import annotations


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
