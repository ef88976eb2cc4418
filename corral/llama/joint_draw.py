"""Draw the tokens of several streams at once: libllama narrows each one's candidates, the rest is one array.

Equal, bit for bit, to what each `Sampler` would draw alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from corral.core.chunk import FloatArray, TokenArray
from corral.llama.sampler import Sampler

_MAX_LEFT = 128  # candidates of a stream; more of them are drawn from alone
_MIN_STREAMS = 3  # from which on it is worth it

Drawn = int | Exception


class JointDraw:
    """Mutable: scratch memory for up to `n` streams."""

    def __init__(self, n: int) -> None:
        self._ids = np.zeros((n, _MAX_LEFT), np.int32)
        self._logits = np.full((n, _MAX_LEFT), -np.inf, np.float32)

    def sample(
        self, samplers: Sequence[Sampler], rows: Sequence[FloatArray], indexes: Sequence[int]
    ) -> list[Drawn]:
        """Return the token of each stream, or why it has none."""
        drawn: list[Drawn] = [0] * len(samplers)
        joined: list[int] = []
        widest = 0
        joins = len(samplers) >= _MIN_STREAMS
        for i, (sampler, logits, index) in enumerate(zip(samplers, rows, indexes, strict=True)):
            try:
                left = sampler.narrow(logits, index) if joins and sampler.can_join else None
                if left is None or len(left[0]) > _MAX_LEFT or left[1][0] == -np.inf:
                    drawn[i] = sampler.sample(logits, index)[0]
                    continue
            except Exception as error:
                drawn[i] = error
                continue
            widest = max(widest, self._keep(len(joined), *left))
            joined.append(i)
        if joined:
            points = np.array([samplers[i].point(indexes[i]) for i in joined])
            for i, token in zip(joined, self._draw(len(joined), widest, points), strict=True):
                samplers[i].accept(token)
                drawn[i] = token
        return drawn

    def _keep(self, row: int, ids: TokenArray, logits: FloatArray) -> int:
        n = len(ids)
        self._ids[row, :n] = ids
        self._logits[row, :n] = logits
        self._logits[row, n:] = -np.inf
        return n

    def _draw(self, n: int, width: int, points: npt.NDArray[np.float64]) -> list[int]:
        """Return a token of each row. `points`: its random number."""
        logits = self._logits[:n, :width]
        top = logits.max(axis=1, keepdims=True)
        weights = np.exp(logits - top, dtype=np.float64).astype(np.float32)
        cumulative = weights.cumsum(axis=1, dtype=np.float64)
        choices = (cumulative < (points * cumulative[:, -1])[:, None]).sum(axis=1)
        ramp = np.arange(n)
        is_zero = weights[ramp, choices] == 0  # a draw of exactly 0
        if is_zero.any():
            choices = np.where(is_zero, (weights > 0).argmax(axis=1), choices)
        tokens: list[int] = self._ids[ramp, choices].tolist()
        return tokens
