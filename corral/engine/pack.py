"""Plan which inputs are embedded together, and merge those that were cut: pure decisions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from corral.core.chunk import FloatArray
from corral.core.pooling import Pooling
from corral.engine.batch import MIN_PREFILL


class Input(NamedTuple):
    """The length of an input and its number within its task."""

    n: int
    number: int


class PackLimits(NamedTuple):
    """Maximum tokens of all inputs of a batch together, and of one input."""

    n_pack: int
    n_most: int


def plan_limits(n_batch: int, n_pack: int, is_whole: bool, n_budget: int | None) -> PackLimits:
    """Compute the limits for `n_budget` tokens. Inputs that must stay whole are evaluated anyway."""
    n_room = n_batch if n_budget is None else max(MIN_PREFILL, min(n_batch, n_budget))
    return PackLimits(min(n_room, n_pack), n_batch if is_whole else n_room)


def n_up_to(n: int, inputs: Sequence[Input]) -> int:
    """Return how many of the sorted inputs are not longer than `n`."""
    return bisect_right(inputs, n, key=lambda waiting: waiting.n)


def plan_pack(tasks: Sequence[Sequence[Input]], n_tokens: int, n_seq: int) -> list[tuple[int, Input]]:
    """Choose the inputs of the next batch, each with the number of its task. Inputs of a task are sorted.

    Tasks take turns, each with its longest input that still fits: batches get full, and no task waits for
    the end of another. The first input may be longer than the batch, and then is alone in it.
    """
    left = [list(inputs) for inputs in tasks]
    packed = [(0, left[0].pop())]
    n_tokens -= packed[0][1].n
    turns = [*range(1, len(left)), 0]
    while turns and len(packed) < n_seq:
        turns = [task for task in turns if left[task] and left[task][0].n <= n_tokens]
        for task in turns:
            n_fitting = n_up_to(n_tokens, left[task])
            if n_fitting and len(packed) < n_seq:
                packed.append((task, left[task].pop(n_fitting - 1)))
                n_tokens -= packed[-1][1].n
    return packed


def merge(pooling: Pooling, parts: Sequence[FloatArray], sizes: Sequence[int]) -> FloatArray:
    """Merge the vectors of an input that was evaluated in chunks of these sizes, each of which saw the
    earlier ones."""
    if pooling is Pooling.NONE:
        return np.concatenate(parts)
    if pooling is Pooling.MEAN:
        mean: FloatArray = np.average(np.stack(parts), axis=0, weights=sizes).astype(np.float32)
        return mean
    return parts[0] if pooling is Pooling.CLS else parts[-1]
