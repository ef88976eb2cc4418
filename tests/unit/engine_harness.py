"""The engine on a fake backend, stepped by hand, and tasks for it."""

from __future__ import annotations

from typing import Any

import numpy as np

from corral.core.chunk import Chunk
from corral.core.params import Constraint, GenerationParams, SamplingParams
from corral.core.pooling import Pooling
from corral.core.result import Done, Tokens
from corral.core.settings import EngineSettings
from corral.core.task import Task
from corral.engine.generation_engine import GenerationEngine
from tests.unit.fake import EOG, FakeBackend, FakeEncoder, keeping


class EngineHarness:
    """An engine on a fake backend, with a clock that ticks and everything it emitted."""

    def __init__(self, backend: FakeBackend | None = None, **options) -> None:
        self.backend: Any = backend or FakeBackend()
        self.now = 0.0
        self.events: list = []
        engine_settings = EngineSettings(model="fake", **options)
        self.engine = GenerationEngine(self.backend, engine_settings, keeping(self.events), self._clock)
        self.slots = self.engine._scheduler.slots

    def _clock(self) -> float:
        self.now += 0.001
        return self.now

    def run(self, *tasks: Any) -> None:
        for task in tasks:
            self.engine.handle(task)
        for _ in range(5000):
            if not self.engine.has_work:
                return
            self.engine.step()
            self.check_mirrors()
        raise AssertionError("the engine does not come to an end")

    def check_mirrors(self) -> None:
        for slot in self.slots:
            assert slot.tokens.view.tolist() == self.backend.sequences[slot.id]

    def of(self, task_id: int, kind: Any) -> list[Any]:
        return [e for e in self.events if isinstance(e, kind) and e.task_id == task_id]

    def tokens(self, task_id: int) -> list[int]:
        return [t for e in self.of(task_id, Tokens) for t in e.tokens]

    def text(self, task_id: int) -> str:
        return "".join(e.text for e in self.events if isinstance(e, Tokens | Done) and e.task_id == task_id)

    def done(self, task_id: int) -> Done:
        (done,) = self.of(task_id, Done)
        return done


def task(id: int, prompt: list[int], seed: int = 1, n_predict: int = 8, **params) -> Task:
    sampling = SamplingParams(seed=seed, logit_bias=((EOG, -1.0),))
    return Task(
        id=id, prompt=prompt, params=GenerationParams(sampling=sampling, n_predict=n_predict, **params)
    )


def alone(one: Task, **backend) -> list[int]:
    """What a task gives with the engine to itself."""
    bench = EngineHarness(FakeBackend(**backend))
    bench.run(one)
    return bench.tokens(one.id)


PROMPT = [3] * 41


def grammar(text: str) -> Constraint:
    return Constraint(kind="gbnf", text=text, field="grammar")


def embed_alone(tokens: list[int], pooling: Pooling, labels=()) -> np.ndarray:
    encoder = FakeEncoder(pooling, n_batch=len(tokens), labels=labels)
    encoder.decode([Chunk(0, 0, np.array(tokens, np.int32), logits=True)])
    (rows,) = encoder.vectors()
    return rows.ravel()
