"""Checkpoints of a sequence whose memory cannot be cut: pure decisions about where to take and keep them.

A recurrent layer has only its last state, a layer with a sliding window only its last tokens. A checkpoint
is a copy of that part of the memory, so that the sequence can go back to where it was taken; the other layers
are cut there.

    tokens       | system | user | assistant | user | answer
    checkpoints           ^                  ^    ^
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from corral.core.chunk import MIN_CHUNK, State, TokenArray
from corral.core.media import runs_in
from corral.engine.batch import align

_INNER_STEP = 8192  # tokens between checkpoints inside a message, unless there is a minimum
_TAIL = 4  # tokens after a chunk of full size, as in llama-server


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The part of a sequence's state that cannot be cut, after its first `n` tokens."""

    n: int
    state: State

    @property
    def n_bytes(self) -> int:
        return len(self.state)


@dataclass(frozen=True, slots=True)
class CheckpointRule:
    """`n_max`: checkpoints of a slot; `min_step`: tokens between those that are not near the end of a prompt;
    `n_ubatch`: tokens that are evaluated at once; `message_ends`: tokens that end a message."""

    n_max: int
    min_step: int
    n_ubatch: int
    message_ends: Collection[int] = ()

    def plan(self, prompt: TokenArray, n_cached: int, n_system: int = 0) -> tuple[int, ...]:
        """Return where to take checkpoints while the rest of a prompt is evaluated, in ascending order."""
        if not self.n_max:
            return ()
        start = max([n_cached, *(run.end for run in runs_in(prompt))])
        ends = message_bounds(prompt, self.message_ends)
        near = [*ends[:1], *ends[-2:]] or [len(prompt) - self.n_ubatch - _TAIL]
        spaced = _spaced(ends, start, len(prompt), self.min_step)
        wanted = [len(prompt) - MIN_CHUNK, *near, n_system, *spaced]
        return _apart(wanted, start, len(prompt))[-self.n_max :]


def message_bounds(prompt: TokenArray, ends: Collection[int]) -> list[int]:
    """Return where messages end, after the token that says so."""
    found: list[int] = (np.flatnonzero(np.isin(prompt, list(ends))) + 1).tolist()
    return found


def _spaced(bounds: Iterable[int], start: int, end: int, step: int) -> list[int]:
    """Return boundaries of messages that are `step` tokens apart, and places in longer messages."""
    last, places, inner = start, list[int](), max(step or _INNER_STEP, MIN_CHUNK)
    for bound in [*(n for n in bounds if start < n), end]:
        while bound - last > 2 * inner:
            last += inner
            places.append(last)
        if bound - last >= step and bound < end:
            last = bound
            places.append(last)
    return places


def _apart(wanted: Iterable[int], start: int, end: int) -> tuple[int, ...]:
    """Return the wanted places where a prompt can be cut, each with a chunk before and after it; of two that
    are too close the later one."""
    kept: list[int] = []
    for n in sorted({start + align(max(n - start, 0)) for n in wanted}, reverse=True):
        following = kept[-1] if kept else end
        if start + MIN_CHUNK <= n <= following - MIN_CHUNK:
            kept.append(n)
    return tuple(reversed(kept))


def add_checkpoint(kept: Sequence[Checkpoint], new: Checkpoint, n_max: int) -> list[Checkpoint]:
    """Return the checkpoints with a new one, in ascending order. If there are too many, the one goes whose
    loss means the fewest tokens to evaluate again; the newest stays."""
    ordered = sorted([*(old for old in kept if old.n != new.n), new], key=lambda checkpoint: checkpoint.n)
    while len(ordered) > n_max:
        before = [0, *(checkpoint.n for checkpoint in ordered)]
        gaps = [
            (checkpoint.n - before[i], i) for i, checkpoint in enumerate(ordered) if checkpoint is not new
        ]
        if not gaps:
            break
        del ordered[min(gaps)[1]]
    return ordered


def latest(cuts: Iterable[int], n: int) -> int:
    """Return the last of these places that is not after `n`; 0: there is none."""
    return max((cut for cut in cuts if cut <= n), default=0)
