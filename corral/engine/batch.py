"""What one step evaluates: a pure decision over counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corral.core.chunk import ALIGNMENT, MIN_CHUNK

MIN_PREFILL = 16  # tokens a waiting prompt gets in every step, so that none starves


@dataclass(frozen=True, slots=True)
class Token:
    """The next token of a stream, for its slot. Variants of a model are never in the same batch."""

    slot: int
    lora_key: bytes = b""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that is being evaluated: its slot and how many tokens are left, or up to where media begin
    or end. `is_alone`: these are media, with which nothing is in a batch; `is_whole`: nor are they cut."""

    slot: int
    n_pending: int
    lora_key: bytes = b""
    is_alone: bool = False
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """`n` tokens of a slot's pending ones."""

    slot: int
    n: int


@dataclass(frozen=True, slots=True)
class BatchShape:
    """How many tokens a batch may have, how many of them run at once, and whether sequences may mix in it."""

    n_batch: int
    n_ubatch: int
    mixes: bool


BatchPlan = tuple[Part, ...]


def plan_batches(
    tokens: Sequence[Token], prompts: Sequence[Prompt], budget: int, shape: BatchShape
) -> list[BatchPlan]:
    """The batches of one step: every stream's token first, then `budget` prompt tokens.

    Where the backend does not mix (split KV), a prompt chunk is a batch of its own: libllama would cut a
    mixed one into pieces of equal length anyway, and a prompt evaluated alone gives the same bits
    whatever runs beside it.
    """
    chunks = _plan_chunks(prompts, budget, shape.n_ubatch)
    lora_key_of = {token.slot: token.lora_key for token in tokens}
    lora_key_of |= {prompt.slot: prompt.lora_key for prompt in prompts}
    alone = {prompt.slot for prompt in prompts if prompt.is_alone or not shape.mixes}
    batches: list[BatchPlan] = []
    for lora_key in dict.fromkeys(lora_key_of.values()):
        parts = [Part(token.slot, 1) for token in tokens if token.lora_key == lora_key]
        alike = [chunk for chunk in chunks if lora_key_of[chunk.slot] == lora_key and chunk.slot not in alone]
        parts += _fit(alike, shape.n_batch - len(parts))
        if parts:
            batches.append(tuple(sorted(parts, key=lambda part: part.slot)))
    return batches + [(chunk,) for chunk in chunks if chunk.slot in alone]


def _fit(chunks: Sequence[Part], room: int) -> list[Part]:
    """The chunks, in order, as far as one batch has room for them."""
    fitting: list[Part] = []
    for chunk in chunks:
        n = min(chunk.n, room)
        if n > 0:
            fitting.append(Part(chunk.slot, n))
        room -= n
    return fitting


def _plan_chunks(prompts: Sequence[Prompt], budget: int, n_ubatch: int) -> list[Part]:
    """A floor for everyone in order of arrival, the rest to the shortest first."""
    shares = {prompt.slot: min(prompt.n_pending, MIN_PREFILL) for prompt in prompts}
    left = budget - sum(shares.values())
    for prompt in sorted(prompts, key=lambda p: p.n_pending):
        more = max(0, min(prompt.n_pending - shares[prompt.slot], left))
        shares[prompt.slot] += more
        left -= more
    sizes = [chunk_size(p.n_pending, min(shares[p.slot], n_ubatch)) for p in prompts]
    return [Part(p.slot, p.n_pending if p.is_whole else n) for p, n in zip(prompts, sizes, strict=True)]


def chunk_size(n_pending: int, n_max: int) -> int:
    """About `n_max` of the pending tokens: all of them, or an aligned number that leaves a chunk."""
    n_max = max(n_max, MIN_CHUNK)
    if n_pending <= n_max or n_pending < 2 * MIN_CHUNK:
        return n_pending
    return align(min(n_max, n_pending - MIN_CHUNK))


def align(n: int) -> int:
    return n - n % ALIGNMENT
