"""What one step evaluates: a pure decision over counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FLOOR = 16  # tokens a waiting prompt gets in every step, so that none starves

# libllama evaluates fewer tokens than this with other arithmetic (on ARM: attention accumulated in 16 bits).
# Prompts are never cut that small, so that an answer does not depend on what else was running or cached.
MIN_CHUNK = 8


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that is being evaluated: its slot and how many tokens are left."""

    slot: int
    n_pending: int


@dataclass(frozen=True, slots=True)
class Part:
    """`n` tokens of a slot's pending ones."""

    slot: int
    n: int


BatchPlan = tuple[Part, ...]


def plan_batches(
    generating: Sequence[int], prompts: Sequence[Prompt], budget: int, n_ubatch: int, mixes: bool
) -> list[BatchPlan]:
    """The batches of one step: every generating slot's token first, then `budget` prompt tokens.

    Where the backend does not mix (split KV), a prompt chunk is a batch of its own: libllama would cut a
    mixed one into pieces of equal length anyway, and a prompt evaluated alone gives the same bits
    whatever runs beside it.
    """
    tokens = [Part(slot, 1) for slot in sorted(generating)]
    chunks = _plan_chunks(prompts, budget, n_ubatch)
    if mixes:
        return [tuple(sorted(tokens + chunks, key=lambda part: part.slot))] if tokens or chunks else []
    batches: list[BatchPlan] = [tuple(tokens)] if tokens else []
    return batches + [(chunk,) for chunk in chunks]


def _plan_chunks(prompts: Sequence[Prompt], budget: int, n_ubatch: int) -> list[Part]:
    """A floor for everyone in order of arrival, the rest to the shortest first."""
    shares = {prompt.slot: min(prompt.n_pending, FLOOR) for prompt in prompts}
    left = budget - sum(shares.values())
    for prompt in sorted(prompts, key=lambda p: p.n_pending):
        more = max(0, min(prompt.n_pending - shares[prompt.slot], left))
        shares[prompt.slot] += more
        left -= more
    return [Part(p.slot, chunk_size(p.n_pending, min(shares[p.slot], n_ubatch))) for p in prompts]


def chunk_size(n_pending: int, n_max: int) -> int:
    """About `n_max` of the pending tokens; neither they nor the rest are fewer than MIN_CHUNK."""
    n = min(n_pending, max(n_max, MIN_CHUNK))
    if 0 < n_pending - n < MIN_CHUNK:
        n = n_pending - MIN_CHUNK if n_pending >= 2 * MIN_CHUNK else n_pending
    return n
