"""Find how many streams can be evaluated at once with the same bits as each alone (`--batch-exact`).

On a CPU libllama uses different kernels for more rows: from 8 on for most weights on x86-64, from 4 on for K
quants there and on ARM. It depends on the machine, the build and the weights, so it is measured.
"""

from __future__ import annotations

import numpy as np

from corral.core.chunk import Chunk, DecodeStatus, FloatArray, TokenArray
from corral.engine.ports import Backend

_N_BEFORE = 24
_N_SMALL = 17  # beyond this, only the largest numbers are tried


def probe_streams(backend: Backend) -> int:
    """Return the largest number up to which all give the same logits; every slot must be empty."""
    n_seq = backend.n_seq
    tokens = ((np.arange(n_seq * (_N_BEFORE + 1)) * 7919 + 11) % backend.n_vocab).astype(np.int32)
    rows = tokens.reshape(n_seq, _N_BEFORE + 1)
    try:
        return _probe(backend, rows)
    finally:
        for seq in range(n_seq):
            backend.trim(seq, 0)


def _probe(backend: Backend, rows: TokenArray) -> int:
    before = [Chunk(seq, 0, row[:_N_BEFORE], 1) for seq, row in enumerate(rows)]
    if any(backend.decode([chunk]) is not DecodeStatus.OK for chunk in before):
        return 1
    alone = [row for chunk in _next(rows) for row in _evaluate(backend, [chunk])]
    n_exact = 1
    for n in _sizes(len(rows)):
        if not all(backend.trim(seq, _N_BEFORE) for seq in range(len(rows))):
            break
        if not _are_equal(_evaluate(backend, _next(rows)[:n]), alone):
            break
        n_exact = n
    return n_exact


def _next(rows: TokenArray) -> list[Chunk]:
    return [Chunk(seq, _N_BEFORE, row[_N_BEFORE:], 1) for seq, row in enumerate(rows)]


def _sizes(n_most: int) -> list[int]:
    """Return the numbers to try: the small ones, at which libllama switches kernels, and the largest ones."""
    return sorted({*range(2, min(n_most, _N_SMALL) + 1), *(n for n in (n_most - 1, n_most) if n > 1)})


def _evaluate(backend: Backend, chunks: list[Chunk]) -> list[FloatArray]:
    if backend.decode(chunks) is not DecodeStatus.OK:
        return []
    return [backend.logits(i).copy() for i in range(len(chunks))]


def _are_equal(found: list[FloatArray], alone: list[FloatArray]) -> bool:
    return bool(found) and all(np.array_equal(a, b) for a, b in zip(found, alone, strict=False))
