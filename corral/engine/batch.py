"""Plan what one step evaluates: a pure decision over counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from corral.core.chunk import ALIGNMENT, MIN_CHUNK

NO_LIMIT = 2**31
MIN_PREFILL = 16  # tokens in every step of streams, and of the oldest and the shortest prompt: none starves


class NextToken(NamedTuple):
    """The next token of a stream, for its slot. Different adapter sets are never in the same batch."""

    slot: int
    lora_key: bytes = b""


@dataclass(frozen=True, slots=True)
class PendingPrompt:
    """A prompt being evaluated: its slot and its remaining tokens, up to where media begin or end.
    `is_alone`: these share a batch with nothing, as media do; `is_whole`: nor can they be cut. `n_max`: the
    most of them that can be evaluated at once. `is_answer`: they are tokens of a stream."""

    slot: int
    n_pending: int
    lora_key: bytes = b""
    is_alone: bool = False
    is_whole: bool = False
    n_max: int = NO_LIMIT
    is_answer: bool = False


class PromptPart(NamedTuple):
    """`n` tokens of a slot's pending ones."""

    slot: int
    n: int


@dataclass(frozen=True, slots=True)
class BatchShape:
    """How many tokens a batch may have, how many of them run at once, and whether it may mix sequences.
    `n_streams`: how many streams a batch may have, if it does not mix them with prompts; `n_adapted`: the
    same of streams with adapters."""

    n_batch: int
    n_ubatch: int
    mixes: bool
    n_streams: int = NO_LIMIT
    n_adapted: int = NO_LIMIT


BatchPlan = tuple[PromptPart, ...]


def plan_batches(
    tokens: Sequence[NextToken], prompts: Sequence[PendingPrompt], budget: int, shape: BatchShape
) -> list[BatchPlan]:
    """Plan the batches of one step: every stream's token first, then `budget` prompt tokens.

    Where the backend does not mix (split KV), a prompt chunk is a batch of its own: libllama would cut a
    mixed batch into pieces of equal length anyway, and a prompt evaluated alone gives the same bits
    whatever runs at the same time.
    """
    chunks = _plan_chunks(prompts, budget, shape.n_ubatch)
    lora_key_of = {token.slot: token.lora_key for token in tokens}
    lora_key_of |= {prompt.slot: prompt.lora_key for prompt in prompts}
    alone = {prompt.slot for prompt in prompts if prompt.is_alone or not shape.mixes}
    batches: list[BatchPlan] = []
    for lora_key in dict.fromkeys(lora_key_of.values()):
        alike = [PromptPart(token.slot, 1) for token in tokens if token.lora_key == lora_key]
        *full, parts = _split(alike, lora_key, shape)
        batches += map(tuple, full)
        mixed = [chunk for chunk in chunks if lora_key_of[chunk.slot] == lora_key and chunk.slot not in alone]
        parts += _fit(mixed, shape.n_batch - len(parts))
        if parts:
            batches.append(tuple(sorted(parts)))
    return batches + [(chunk,) for chunk in chunks if chunk.slot in alone]


def count_stream_batches(tokens: Sequence[NextToken], shape: BatchShape) -> int:
    """Return how many batches `plan_batches` makes of these streams."""
    counts = Counter(token.lora_key for token in tokens)
    return sum(_n_groups(n, lora_key, shape) for lora_key, n in counts.items())


def _n_groups(n: int, lora_key: bytes, shape: BatchShape) -> int:
    return 1 if shape.mixes else -(-n // (shape.n_adapted if lora_key else shape.n_streams))


def _split(parts: list[PromptPart], lora_key: bytes, shape: BatchShape) -> list[list[PromptPart]]:
    """Split streams into groups of about the same size, in the order of their slots; at least one group."""
    parts = sorted(parts)
    n = max(1, _n_groups(len(parts), lora_key, shape))
    ends = [len(parts) * i // n for i in range(n + 1)]
    return [parts[start:end] for start, end in pairwise(ends)]


def _fit(chunks: Sequence[PromptPart], room: int) -> list[PromptPart]:
    """Return the leading chunks that fit into one batch."""
    fitting: list[PromptPart] = []
    for chunk in chunks:
        n = min(chunk.n, room)
        if n > 0:
            fitting.append(PromptPart(chunk.slot, n))
        room -= n
    return fitting


def _plan_chunks(prompts: Sequence[PendingPrompt], budget: int, n_ubatch: int) -> list[PromptPart]:
    """Give streams, the oldest prompt and the shortest one the minimum, and the rest to the shortest first.
    Others wait: of many small chunks, each token takes longer."""
    if not prompts:
        return []
    new = [prompt for prompt in prompts if not prompt.is_answer]
    floors = [prompt for prompt in prompts if prompt.is_answer]
    if new:
        floors += [new[0], min(new, key=_n_pending)]
    shares = {prompt.slot: min(prompt.n_pending, MIN_PREFILL) for prompt in floors}
    left = budget - sum(shares.values())
    for prompt in sorted(prompts, key=_n_pending):
        share = shares.get(prompt.slot, 0)
        more = min(min(prompt.n_pending, prompt.n_max) - share, left)
        if more > 0 and share + more >= min(MIN_PREFILL, prompt.n_pending):
            shares[prompt.slot] = share + more
            left -= more
    chosen = [prompt for prompt in prompts if prompt.slot in shares]
    sizes = [chunk_size(p.n_pending, min(shares[p.slot], n_ubatch, p.n_max)) for p in chosen]
    return [PromptPart(p.slot, p.n_pending if p.is_whole else n) for p, n in zip(chosen, sizes, strict=True)]


def _n_pending(prompt: PendingPrompt) -> int:
    return prompt.n_pending


def chunk_size(n_pending: int, n_max: int) -> int:
    """Choose about `n_max` of the pending tokens: all of them, or an aligned number that leaves a chunk."""
    n_max = max(n_max, MIN_CHUNK)
    if n_pending <= n_max or n_pending < 2 * MIN_CHUNK:
        return n_pending
    return align(min(n_max, n_pending - MIN_CHUNK))


def align(n: int) -> int:
    return n - n % ALIGNMENT
