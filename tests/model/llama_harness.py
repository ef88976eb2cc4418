"""An engine on real libllama, driven step by step, and what it emitted."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from llama_cpp import llama_cpp as lib
from typing_extensions import Self

from corral.core.chunk import Chunk, DecodeStatus, TokenArray
from corral.core.media import cell_positions
from corral.core.params import GenerationParams, SamplingParams
from corral.core.result import Admitted, Done, Failed, TokenProbs, Tokens
from corral.core.settings import EngineSettings
from corral.core.task import Task
from corral.engine.generation_engine import GenerationEngine
from corral.llama.backend import LlamaBackend
from corral.llama.model import Model
from corral.llama.multimodal import Projector
from tests.unit.fake import keeping

GREEDY = SamplingParams(temperature=0.0, n_probs=2)
SEEDED = SamplingParams(temperature=1.0, seed=7, n_probs=2)

_WORDS = [
    "the",
    "world",
    "is",
    "not",
    "that",
    "hello",
    "you",
    "it",
    "was",
    "for",
    "one",
    "in",
    "hill",
    "and",
    "have",
    "to",
    "be",
    "with",
    "them",
    "are",
    "a",
    "of",
]


class LlamaHarness:
    """Records all events and decodes, and compares after every step what slots and libllama hold."""

    def __init__(self, model: Path, n_parallel: int = 1, n_ctx_slot: int = 512, **options: Any) -> None:
        options = {"flash_attn": "off", "n_threads": 1, **options}
        n_ctx = options.pop("n_ctx", n_parallel * n_ctx_slot)
        settings = EngineSettings(model=str(model), n_ctx=n_ctx, n_parallel=n_parallel, **options)
        loaded = Model.load(settings)
        self.projector = Projector(loaded.handle, settings) if settings.mmproj else None
        self.backend = LlamaBackend(loaded, settings, self.projector)
        self.events: list = []
        self.decodes: list[tuple[list[Chunk], DecodeStatus]] = []
        self.engine = GenerationEngine(self.backend, settings, keeping(self.events))
        self.slots = self.engine._scheduler.slots
        self.kv = self.engine._kv
        self._decode = self.backend.decode
        self.backend.decode = self._record_decode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception) -> None:
        if self.projector is not None:
            self.projector.close()
        self.backend.close()

    def warm_up(self) -> None:
        """What an engine does before its first request, and in its first pause."""
        self.engine.warm_up()
        if not self.engine.is_calibrated:
            self.engine.calibrate(lambda: False)

    def prompt(self, n: int, seed: int = 0) -> list[int]:
        """`n` tokens of some text."""
        words = random.Random(seed).choices(_WORDS, k=2 * n)
        return self.backend.vocab.tokenize(" ".join(words), True, False)[:n]

    def run(self, *tasks: Any) -> None:
        """Hand in the tasks and go on until nothing is left to do."""
        for task in tasks:
            self.engine.handle(task)
        self.step_until(lambda: not self.engine.has_work)

    def step_until(self, condition: Callable[[], object], max_steps: int = 10_000) -> None:
        for _ in range(max_steps):
            if condition():
                return
            while self.engine.is_waiting:
                time.sleep(0.001)
            self.step()
        raise AssertionError("the engine does not come to an end")

    def step(self) -> None:
        self.engine.step()
        memory = lib.llama_get_memory(self.backend.handle)
        held = [lib.llama_memory_seq_pos_max(memory, slot.id) + 1 for slot in self.slots]
        assert [_end(slot.tokens.view) for slot in self.slots] == held

    def of(self, task_id: int, kind: Any) -> list[Any]:
        return [e for e in self.events if isinstance(e, kind) and e.task_id == task_id]

    def tokens(self, task_id: int) -> list[int]:
        return [token for e in self.of(task_id, Tokens) for token in e.tokens]

    def answer(self, task_id: int) -> list[TokenProbs]:
        """The tokens with their probabilities: equal ones come from equal logits, to the bit."""
        return [probs for e in self.of(task_id, Tokens) for probs in e.probs]

    def text(self, task_id: int) -> str:
        return "".join(e.text for e in self.of(task_id, Tokens) + self.of(task_id, Done))

    def done(self, task_id: int) -> Done:
        assert not self.of(task_id, Failed)
        (done,) = self.of(task_id, Done)
        return done

    def n_cached(self, task_id: int) -> int:
        return self.of(task_id, Admitted)[0].n_cached

    @property
    def statuses(self) -> list[DecodeStatus]:
        return [status for _, status in self.decodes]

    @property
    def chunk_sizes(self) -> list[int]:
        """In how many tokens each the prompts were evaluated."""
        return [len(c.tokens) for chunks, _ in self.decodes for c in chunks if len(c.tokens) > 1]

    def _record_decode(self, chunks: Sequence[Chunk]) -> DecodeStatus:
        status = self._decode(chunks)
        self.decodes.append((list(chunks), status))
        return status


def _end(tokens: TokenArray) -> int:
    return int(cell_positions(tokens)[-1]) + 1 if len(tokens) else 0


def task(
    id: int,
    prompt: Sequence[int],
    sampling: SamplingParams = GREEDY,
    n_predict: int = 24,
    resume: Sequence[int] = (),
    **params,
) -> Task:
    generation = GenerationParams(sampling=sampling, n_predict=n_predict, **params)
    return Task(id=id, prompt=list(prompt), params=generation, resume=list(resume))


def alone(model: Path, one: Task, **options) -> list[TokenProbs]:
    """What a task answers on a fresh engine of its own."""
    with LlamaHarness(model, **options) as bench:
        bench.run(one)
        return bench.answer(one.id)
