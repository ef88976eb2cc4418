"""Draw the tokens of several streams in one call of libllama's, which a patch adds.

Equal to what each `Sampler` would draw alone. A libllama without the patch has `JointDraw` in its place.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from corral.core.chunk import FloatArray
from corral.llama.joint_draw import Drawn
from corral.llama.library import lib
from corral.llama.sampler import Sampler

_FUNCTION = "llama_draw"
_ROW = np.dtype(  # `llama_draw_row`
    [
        ("logits", np.uintp),
        ("chain", np.uintp),
        ("point", np.float64),
        ("n_best", np.int32),
        ("token", np.int32),
    ],
    align=True,
)


def has_native_draw() -> bool:
    return hasattr(lib._lib, _FUNCTION)


class NativeDraw:
    """Mutable: scratch memory for up to `n` streams."""

    def __init__(self, n: int, n_vocab: int, n_threads: int) -> None:
        self._rows = np.zeros(n, _ROW)
        self._address = self._rows.ctypes.data
        self._n_vocab = n_vocab
        self._n_threads = n_threads
        self._draw: Any = getattr(lib._lib, _FUNCTION)
        self._draw.restype = None
        self._draw.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32]

    def sample(
        self, samplers: Sequence[Sampler], rows: Sequence[FloatArray], indexes: Sequence[int]
    ) -> list[Drawn]:
        """Return the token of each stream, or why it has none."""
        chains = [sampler.chain for sampler in samplers]
        joined = [i for i, chain in enumerate(chains) if chain is not None]
        drawn: list[Drawn] = self._draw_joined(joined, chains, samplers, rows, indexes)
        for i, token in enumerate(drawn):
            if isinstance(token, int) and token < 0:
                try:
                    drawn[i] = samplers[i].sample(rows[i], indexes[i])[0]
                except Exception as error:
                    drawn[i] = error
        return drawn

    def _draw_joined(
        self,
        joined: Sequence[int],
        chains: Sequence[int | None],
        samplers: Sequence[Sampler],
        rows: Sequence[FloatArray],
        indexes: Sequence[int],
    ) -> list[Drawn]:
        """Draw for some of the streams; a negative number means no token."""
        drawn: list[Drawn] = [-1] * len(samplers)
        table = self._rows[: len(joined)]
        table["logits"] = [rows[i].__array_interface__["data"][0] for i in joined]
        table["chain"] = [chains[i] for i in joined]
        table["point"] = [samplers[i].point(indexes[i]) if chains[i] else 0.0 for i in joined]
        table["n_best"] = [samplers[i].n_best for i in joined]
        biased = [(i, samplers[i].add_bias(rows[i])) for i in joined if samplers[i].has_bias]
        self._draw(self._address, len(joined), self._n_vocab, self._n_threads)
        for i, unbiased in biased:
            samplers[i].remove_bias(rows[i], unbiased)
        for i, token in zip(joined, table["token"].tolist(), strict=True):
            if token >= 0:
                samplers[i].accept(token)
                drawn[i] = token
        return drawn
