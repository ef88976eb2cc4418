"""Try whether streams in one batch have the same bits as each alone (`--batch-exact`).

How many they may be follows from libllama's kernels (`Backend.batch_exact`). This checks all of a model at
many positions of different contexts: most differences show only where a rounding tips over.
"""

from __future__ import annotations

import numpy as np
import xxhash

from corral.core.chunk import Chunk, DecodeStatus, TokenArray
from corral.engine.ports import Backend

_N_BEFORE = 16  # of the first sequence; each further one has another number
_N_VARIED = 9
_N_COMPARED = 64  # logits
_MIN_STEPS, _MAX_STEPS = 2, 24  # of each stream
_FEWER = (7, 3, 2)  # numbers at which libllama switches kernels


def probe_streams(backend: Backend, n_most: int) -> int:
    """Return up to how many streams give the same logits, at most `n_most`; every slot must be empty."""
    n_most = min(n_most, backend.n_seq)
    if n_most < 2:
        return 1
    n_steps = min(max(_N_COMPARED // n_most, _MIN_STEPS), _MAX_STEPS)
    n_tokens = _N_BEFORE + _N_VARIED + n_steps
    tokens = ((np.arange(n_most * n_tokens) * 7919 + 11) % backend.n_vocab).astype(np.int32)
    try:
        return _probe(backend, tokens.reshape(n_most, n_tokens), n_steps)
    finally:
        for seq in range(n_most):
            backend.trim(seq, 0)


def _probe(backend: Backend, rows: TokenArray, n_steps: int) -> int:
    n_most = len(rows)
    for seq, row in enumerate(rows):
        before = Chunk(seq, 0, row[: _start(seq)], 1)
        if backend.decode([before]) is not DecodeStatus.OK:
            return 1
    alone = [_evaluate(backend, rows, step, 1) for step in range(n_steps)]
    for n in (n_most, *(fewer for fewer in _FEWER if fewer < n_most)):
        if not all(backend.trim(seq, _start(seq)) for seq in range(n_most)):
            break
        if all(_evaluate(backend, rows, i, _size(i, n)) == alone[i] != [] for i in range(n_steps)):
            return n
    return 1


def _start(seq: int) -> int:
    return _N_BEFORE + seq % _N_VARIED


def _size(step: int, n: int) -> int:
    """Return how many streams share a batch in a step: `n`, and in between each smaller number."""
    return n if step % 2 == 0 or n == 2 else 2 + step // 2 % (n - 1)


def _evaluate(backend: Backend, rows: TokenArray, step: int, n: int) -> list[bytes]:
    """Evaluate the next token of all streams, `n` together; returns digests of their logits, or nothing."""
    found: list[bytes] = []
    for first in range(0, len(rows), n):
        seqs = range(first, min(first + n, len(rows)))
        places = [_start(seq) + step for seq in seqs]
        chunks = [Chunk(seq, at, rows[seq, at : at + 1], 1) for seq, at in zip(seqs, places, strict=True)]
        if backend.decode(chunks) is not DecodeStatus.OK:
            return []
        found += [xxhash.xxh3_128_digest(backend.logits(i).tobytes()) for i in range(len(chunks))]
    return found
