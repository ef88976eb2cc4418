"""Find how many tokens can be evaluated at once with the same results as one by one.

On a CPU libllama uses different arithmetic for larger chunks; from which size on depends on the machine
and on the encoding of the weights, so it is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from corral.core.chunk import ALIGNMENT, MIN_CHUNK, Chunk, DecodeStatus
from corral.core.params import MAX_AHEAD
from corral.engine.cost import CostModel, Load
from corral.engine.ports import Backend

_Evaluate = Callable[[int, int, int], bool]  # from where, how many tokens, how many logits; whether it worked
TOLERANCE = 3e-5  # difference of a logit
_N_BEFORE = 24
_N_CHUNKS = 3  # results of one depend on the last, so small differences may grow
_SIZES = (MIN_CHUNK, MIN_CHUNK - 1, 3, 2)  # sizes at which libllama switches kernels


class _Interrupted(Exception):
    """The pause in which this runs is over."""


def probe_exact(
    backend: Backend,
    cost: CostModel,
    clock: Callable[[], float] = time.perf_counter,
    seq: int = 0,
    is_over: Callable[[], bool] = lambda: False,
) -> int | None:
    """Return the largest number of tokens that round as they do one by one; records their costs. The sequence
    must be empty, and is so afterwards. None: it ended early, because the pause `is_over`."""
    n = _N_BEFORE + _N_CHUNKS * MIN_CHUNK
    tokens = ((np.arange(n) * 7919 + 11) % backend.n_vocab).astype(np.int32)

    def evaluate(at: int, n: int, n_logits: int) -> bool:
        if is_over():
            raise _Interrupted
        return backend.decode([Chunk(seq, at, tokens[at : at + n], n_logits)]) is DecodeStatus.OK

    try:
        return _probe(backend, evaluate, cost, clock, seq)
    except _Interrupted:
        return None
    finally:
        backend.trim(seq, 0)


def _probe(
    backend: Backend, evaluate: _Evaluate, cost: CostModel, clock: Callable[[], float], seq: int
) -> int:
    if not evaluate(0, _N_BEFORE, 1):
        return 1
    state = None if backend.can_cut else backend.save_partial(seq)

    def go_back() -> bool:
        if state is None:
            return backend.trim(seq, _N_BEFORE)
        return backend.load_partial(seq, state, _N_BEFORE)

    rows = []
    for i in range(_N_CHUNKS * MIN_CHUNK):
        started = clock()
        if not evaluate(_N_BEFORE + i, 1, 1):
            return 1
        rows.append(backend.logits(0).copy())
        cost.observe(Load(n_generating=1), (clock() - started) * 1e3)
    for n in _SIZES:
        if not go_back():
            return 1
        for start in range(0, _N_CHUNKS * n, n):
            started, at = clock(), _N_BEFORE + start
            if not evaluate(at, n, n):
                return 1
            found = [backend.logits(0, n - 1 - i) for i in range(n)]
            cost.observe(Load(n_ahead=n), (clock() - started) * 1e3)
            differences = [np.abs(a - b).max() for a, b in zip(found, rows[start:], strict=False)]
            if not np.max(differences) <= TOLERANCE:
                break
        else:
            if n > ALIGNMENT:
                _measure_tile(evaluate, cost, clock, go_back)
            return MAX_AHEAD if n == MIN_CHUNK else n
    return 1


def _measure_tile(
    evaluate: _Evaluate, cost: CostModel, clock: Callable[[], float], go_back: Callable[[], bool]
) -> None:
    """Measure a full tile of libllama, which costs less than its neighbours suggest."""
    if go_back():
        started, n = clock(), ALIGNMENT
        evaluate(_N_BEFORE, n, n)
        cost.observe(Load(n_ahead=n), (clock() - started) * 1e3)
