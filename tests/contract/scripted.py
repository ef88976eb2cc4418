"""A server whose model says what a test has written down; its tokens are characters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from corral.core.params import SamplingParams
from corral.core.result import TokenProbs
from corral.core.task import Task
from tests.contract.inline import Server
from tests.unit.fake import EOG, FakeBackend, FakeSampler, FakeVocab

TEMPLATES = Path(__file__).parents[1] / "tools" / "templates"


class CharVocab(FakeVocab):
    n_tokens = 0x110001
    max_piece_bytes = 4

    def piece(self, token: int, special: bool = False) -> bytes:
        if token == EOG:
            return b"</s>" if special else b""
        return chr(token - 1).encode("utf-8", "replace")

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        return [1 + ord(c) for c in text]


class ScriptedSampler(FakeSampler):
    """`n_forced`: characters that follow each one without being drawn, as if a grammar left no choice."""

    def __init__(self, params: SamplingParams, script: str, n_forced: int) -> None:
        super().__init__(params)
        self._script = [1 + ord(c) for c in script]
        self._n_forced = n_forced

    def sample(self, logits: np.ndarray, index: int, redraw: Any = None) -> tuple[int, TokenProbs | None]:
        return (self._script.pop(0) if self._script else EOG), None

    def forced(self, n: int) -> Iterator[int]:
        for _ in range(min(n, self._n_forced, len(self._script))):
            yield self._script.pop(0)


class ScriptedBackend(FakeBackend):
    def __init__(self, n_ctx: int = 8192) -> None:
        super().__init__(n_ctx=n_ctx)
        self.vocab = CharVocab()
        self.script = ""
        self.n_forced = 0

    def open_sampler(self, params: SamplingParams, prompt, grammar=None) -> ScriptedSampler:
        return ScriptedSampler(params, self.script, self.n_forced)


class ScriptedServer(Server):
    def __init__(self, template: str = "qwen3", n_ctx: int = 8192, **server) -> None:
        path = str(TEMPLATES / f"{template}.jinja")
        self.scripted = ScriptedBackend(n_ctx)
        super().__init__(self.scripted, chat_template_file=path, **server)

    def say(self, script: str, n_forced: int = 0) -> None:
        """What all answers are from now on."""
        self.scripted.script, self.scripted.n_forced = script, n_forced

    @property
    def prompt(self) -> str:
        """The prompt of the last task."""
        task = self.engine.submitted[-1]
        assert isinstance(task, Task)
        return self.backend.vocab.detokenize(task.prompt)
