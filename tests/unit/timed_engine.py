"""The engine on a fake backend whose batches take the time that those of a certain machine take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from corral.core.chunk import Chunk, DecodeStatus
from corral.core.result import Tokens
from corral.core.task import Task
from tests.unit.engine_harness import EngineHarness
from tests.unit.fake import FakeBackend


@dataclass(frozen=True)
class Machine:
    """What a batch takes there: a part of its own, and one for each stream and each token of prompts."""

    batch_ms: float
    stream_ms: float
    prompt_ms: float

    def ms(self, chunks: Sequence[Chunk]) -> float:
        sizes = [len(chunk.tokens) for chunk in chunks]
        n_streams = sizes.count(1)
        return self.ms_of(n_streams, sum(sizes) - n_streams)

    def ms_of(self, n_streams: int, n_prompt: int) -> float:
        return self.batch_ms + n_streams * self.stream_ms + n_prompt * self.prompt_ms


class TimedEngine(EngineHarness):
    """Mutable: `times` are those of each task's tokens, in seconds since the start."""

    def __init__(self, machine: Machine, mixes: bool, uses_gpu: bool = False, **options) -> None:
        backend = FakeBackend(n_seq=16, n_ctx=4096, n_ubatch=512, n_batch=2048, mixes_batches=mixes)
        backend.uses_gpu = uses_gpu
        super().__init__(backend, **options)
        self.times: dict[int, list[float]] = defaultdict(list)
        decode = backend.decode

        def slow(chunks: Sequence[Chunk]) -> DecodeStatus:
            self.now += machine.ms(chunks) / 1e3
            return decode(chunks)

        backend.decode = slow
        self.engine.warm_up()
        self._began = self.now

    def _clock(self) -> float:
        return self.now

    def serve(self, arrivals: Sequence[tuple[float, Task]]) -> None:
        """Run tasks, each of which arrives at its time."""
        waiting = sorted(arrivals, key=lambda pair: pair[0])
        while waiting or self.engine.has_work:
            while waiting and (waiting[0][0] <= self.whole_s or not self.engine.has_work):
                at, task = waiting.pop(0)
                self.now = max(self.now, self._began + at)
                self.engine.handle(task)
            n_seen = len(self.events)
            self.engine.step()
            for event in self.events[n_seen:]:
                if isinstance(event, Tokens):
                    self.times[event.task_id] += [self.whole_s] * len(event.tokens)

    @property
    def whole_s(self) -> float:
        return self.now - self._began

    def mean_first(self) -> float:
        return fmean(times[0] for times in self.times.values())

    def gaps(self, id: int) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.times[id])]
