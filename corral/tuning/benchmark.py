"""Time a model with given settings, in interleaved runs, so that other load affects all alike."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from corral.core.chunk import Chunk, DecodeStatus, TokenArray
from corral.core.settings import EngineSettings
from corral.llama.library import LlamaError, lib
from corral.llama.model import Model
from corral.tuning.context import open_context
from corral.tuning.profile import Speed

N_STREAMS = 4
N_ROUNDS = 3
_N_BEFORE = 32  # prompt tokens of a stream
_LEAST_S = 0.2  # of a run, for the precision of the clock
_MAX_STEPS = 32


class Benchmark:
    """A model in a separate context, for timing."""

    def __init__(self, model: Model, settings: EngineSettings, n_prompt: int = 256) -> None:
        n_ctx = max(256, n_prompt, _N_BEFORE + _MAX_STEPS)
        if model.n_positions:
            n_prompt = min(n_prompt, model.n_positions)
        n_batch = max(settings.n_ubatch, n_prompt)
        self._context = open_context(settings, model, N_STREAMS * n_ctx, n_batch, n_seq=N_STREAMS)
        self._tokens = ((np.arange(n_prompt) * 7919 + 11) % model.vocab.n_tokens).astype(np.int32)
        self._n_steps = 1
        self._warm_up()

    def close(self) -> None:
        self._context.close()

    def use_threads(self, n_threads: int, n_threads_batch: int) -> None:
        lib.llama_set_n_threads(self._context.handle, n_threads, n_threads_batch)

    def measure(self, *, prompt: bool = True, streams: bool = True) -> Speed:
        """Measure speeds; those that are not requested are NaN."""
        return Speed(
            self._prompt() if prompt else math.nan,
            self._streams(1) if streams else math.nan,
            self._streams(N_STREAMS) if streams else math.nan,
        )

    def _warm_up(self) -> None:
        self._fill(0, self._tokens[:_N_BEFORE])
        started = time.perf_counter()
        self._step(0, 1)
        self._n_steps = min(max(2, int(_LEAST_S / (time.perf_counter() - started))), _MAX_STEPS)

    def _prompt(self) -> float:
        started = time.perf_counter()
        self._fill(0, self._tokens)
        return len(self._tokens) / (time.perf_counter() - started)

    def _streams(self, n: int) -> float:
        for seq in range(n):
            self._fill(seq, self._tokens[:_N_BEFORE])
        started = time.perf_counter()
        for i in range(self._n_steps):
            self._step(i, n)
        return n * self._n_steps / (time.perf_counter() - started)

    def _fill(self, seq: int, tokens: TokenArray) -> None:
        self._context.trim(seq, 0)
        self._decode([Chunk(seq, 0, tokens, logits=1)])

    def _step(self, i: int, n_streams: int) -> None:
        token = self._tokens[i : i + 1]
        self._decode([Chunk(seq, _N_BEFORE + i, token, logits=1) for seq in range(n_streams)])

    def _decode(self, chunks: Sequence[Chunk]) -> None:
        if self._context.decode(chunks) is not DecodeStatus.OK:
            raise LlamaError("a timed run failed")
        self._context.logits(0)  # waits for the computation


def interleave(runs: Sequence[Callable[[], Speed]], on_progress: Callable[[float], None]) -> list[Speed]:
    """Return the median speed of each run, over interleaved rounds."""
    rounds: list[list[Speed]] = [[] for _ in runs]
    for i in range(N_ROUNDS * len(runs)):
        rounds[i % len(runs)].append(runs[i % len(runs)]())
        on_progress((i + 1) / (N_ROUNDS * len(runs)))
    return [_median(speeds) for speeds in rounds]


def _median(speeds: Sequence[Speed]) -> Speed:
    columns = zip(*map(msgspec.structs.astuple, speeds), strict=True)
    return Speed(*(statistics.median(column) for column in columns))
