"""Sampling stages: each narrows or reweights the candidates of one token.

libllama does the work where it has the sampler. What it lacks (tail-free, penalties that spare newlines)
or draws with its own generator (XTC, Mirostat) is implemented here, on the same draws by position.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from corral.core.draw import Twister
from corral.llama.candidates import Candidates, softmax
from corral.llama.library import lib


class SamplerStage(Protocol):
    def apply(self, candidates: Candidates, index: int) -> None: ...

    def accept(self, token: int) -> None: ...

    def close(self) -> None: ...


class NativeStage:
    """One libllama sampler. `has_history`: it must see every accepted token."""

    def __init__(self, handle: Any, has_history: bool = False) -> None:
        self._handle = handle
        self.address = ctypes.cast(handle, ctypes.c_void_p).value or 0
        self._has_history = has_history

    @classmethod
    def chain(cls, stages: Sequence[NativeStage]) -> NativeStage:
        """Return one stage that does what these do in turn; it owns their samplers."""
        if len(stages) == 1:
            return stages[0]
        handle = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        for stage in stages:
            lib.llama_sampler_chain_add(handle, stage._handle)
        return cls(handle, any(stage._has_history for stage in stages))

    def apply(self, candidates: Candidates, index: int) -> None:  # noqa: ARG002
        lib.llama_sampler_apply(self._handle, candidates.pointer)

    def accept(self, token: int) -> None:
        if self._has_history:
            lib.llama_sampler_accept(self._handle, token)

    def close(self) -> None:
        lib.llama_sampler_free(self._handle)


class NewlineSparedStage(NativeStage):
    """Penalties that leave the newline's logit unchanged (`penalize_nl: false`)."""

    def __init__(self, handle: Any, newline: int) -> None:
        super().__init__(handle, has_history=True)
        self._newline = newline

    def apply(self, candidates: Candidates, index: int) -> None:
        at = np.flatnonzero(candidates.ids == self._newline)
        logit = candidates.logits[at].copy()
        super().apply(candidates, index)
        candidates.logits[at] = logit


class XtcStage(NativeStage):
    """XTC with a coin of ours: the native sampler, configured to act always, is called or not.

    Like libllama, it tosses the coin only where there is a choice. Mutable: `n_tosses` counts from -1; the
    last was for the token at `_index`.
    """

    def __init__(self, probability: float, threshold: float, min_keep: int, seed: int) -> None:
        super().__init__(lib.llama_sampler_init_xtc(1.0, threshold, min_keep, 0))
        self._probability = np.float32(probability)
        self._twister = Twister(seed)
        self._index = self.n_tosses = -1

    def apply(self, candidates: Candidates, index: int) -> None:
        if len(candidates.ids) < 2:
            return
        if index != self._index:
            self._index, self.n_tosses = index, self.n_tosses + 1
        if self._twister.single(self.n_tosses) <= self._probability:
            super().apply(candidates, index)


class TailFreeStage:
    """Tail-free sampling: cut where the curvature of the sorted probabilities has used up its share `z`."""

    def __init__(self, z: float, min_keep: int) -> None:
        self._z = z
        self._min_keep = min_keep

    def apply(self, candidates: Candidates, index: int) -> None:  # noqa: ARG002
        ids, logits = candidates.sorted()
        if len(ids) > 2:
            n = max(tail_free_cut(softmax(logits), self._z), self._min_keep, 1)
            candidates.store(ids[:n], logits[:n])

    def accept(self, token: int) -> None: ...

    def close(self) -> None: ...


class TypicalStage:
    """Locally typical sampling: keep the tokens whose surprise is nearest to the expected one.

    libllama's own fails if a candidate has zero probability.
    """

    def __init__(self, p: float, min_keep: int) -> None:
        self._p = p
        self._min_keep = min_keep

    def apply(self, candidates: Candidates, index: int) -> None:  # noqa: ARG002
        ids, logits = candidates.remaining()
        kept = typical_choice(softmax(logits), self._p, self._min_keep)
        candidates.store(ids[kept], logits[kept], is_sorted=False)

    def accept(self, token: int) -> None: ...

    def close(self) -> None: ...


def typical_choice(probs: npt.NDArray[np.float64], p: float, min_keep: int) -> npt.NDArray[np.intp]:
    """Return the indexes of the typical tokens, the most typical first."""
    possible = np.flatnonzero(probs)
    surprise = -np.log(probs[possible])
    entropy = float((probs[possible] * surprise).sum())
    order = possible[np.argsort(np.abs(surprise - entropy), kind="stable")]
    n = int(np.searchsorted(np.cumsum(probs[order]), p, side="right")) + 1
    return order[: max(n, min_keep)]


def tail_free_cut(probs: npt.NDArray[np.float64], z: float) -> int:
    """Return how many of the sorted `probs` tail-free sampling keeps."""
    curvature = np.abs(np.diff(probs, n=2))
    total = curvature.sum()
    weights = curvature / total if total > 1e-6 else np.full(len(curvature), 1.0 / len(curvature))
    beyond = np.flatnonzero(np.cumsum(weights) > z)
    return int(beyond[0]) if len(beyond) else len(probs)


def native_dry(
    vocab: Any, multiplier: float, base: float, allowed: int, last_n: int, breakers: list[bytes]
) -> Any:
    array = (ctypes.c_char_p * len(breakers))(*breakers)
    return lib.llama_sampler_init_dry(vocab, multiplier, base, allowed, last_n, array, len(breakers))
