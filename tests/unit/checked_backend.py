"""A backend that writes JSON lists of short strings, and takes back what its checker objects to."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from corral.core.draw import NO_TOKEN, Redraw
from corral.core.params import Constraint, GenerationParams, SamplingParams, SchemaCheck
from corral.core.task import Task
from corral.grammar.json_schema import plan_schema
from tests.tools.keyed import uniform
from tests.unit.fake import EOG, N_VOCAB, FakeBackend, FakeVocab

PIECES = ["[", "]", '"', ",", "a", "b", '",', '"]', "ab", '","', '["', "[]", "ba"]
MAX_LETTERS = 3
MAX_ITEMS = 9


class ListVocab(FakeVocab):
    def piece(self, token: int, special: bool = False) -> bytes:
        return PIECES[token - 1].encode() if 0 < token <= len(PIECES) else b""

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        return [1 + PIECES.index(letter) for letter in text]


def fits(text: str) -> bool:
    """Whether a text begins a list of up to MAX_ITEMS strings of 1 to MAX_LETTERS letters."""
    state, n_letters, n_items = "start", 0, 0
    for letter in text:
        if state == "start" and letter == "[":
            state = "first"
        elif state in ("first", "next") and letter == '"' and n_items < MAX_ITEMS:
            state, n_letters, n_items = "letters", 0, n_items + 1
        elif state == "letters" and letter in "ab" and n_letters < MAX_LETTERS:
            n_letters += 1
        elif state == "letters" and letter == '"' and n_letters:
            state = "after"
        elif state == "after" and letter == "," and n_items < MAX_ITEMS:
            state = "next"
        elif state in ("first", "after") and letter == "]":
            state = "end"
        else:
            return False
    return True


@cache
def allowed_after(text: str) -> list[int]:
    return [token for token in range(1, len(PIECES) + 1) if fits(text + PIECES[token - 1])]


class ListSampler:
    """Draws from the logits and the seed among what the grammar allows."""

    def __init__(self, vocab: ListVocab, seed: int, forces: bool) -> None:
        self._vocab = vocab
        self._seed = seed
        self._forces = forces
        self._tokens: list[int] = []
        self.n_redrawn = 0
        self.is_open = True

    @property
    def _text(self) -> str:
        return b"".join(map(self._vocab.piece, self._tokens)).decode()

    def _allowed(self) -> list[int]:
        return allowed_after(self._text)

    def sample(self, logits: np.ndarray, index: int, redraw: Redraw | None = None) -> tuple[int, None]:
        assert index == len(self._tokens), "a token was not taken back"
        allowed = self._allowed()
        if redraw is not None:
            self.n_redrawn += bool(redraw.tokens)
            allowed = [t for t in allowed if t not in redraw.tokens]
            other = [t for t in allowed if not redraw.begins(self._vocab.piece(t))]
            allowed = other or [t for t in allowed if not redraw.goes_beyond(self._vocab.piece(t))]
        if not allowed:
            return NO_TOKEN, None
        draw = int(logits[0]) + int(uniform(self._seed, index, (redraw.n if redraw else 0) << 8) * 1e6)
        token = allowed[draw % len(allowed)]
        self._tokens.append(token)
        return token, None

    def force(self, logits: np.ndarray, index: int, token: int) -> None:
        assert index == len(self._tokens)
        self._tokens.append(token)

    def forced(self, n: int) -> Iterator[int]:
        while self._forces and n > 0 and len(allowed := self._allowed()) == 1:
            n -= 1
            self._tokens.append(allowed[0])
            yield allowed[0]

    def rewind(self, n: int) -> bool:
        del self._tokens[n:]
        return True

    def prepare(self) -> None: ...

    @property
    def is_unfinished(self) -> bool:
        return not self._text.endswith("]")

    @property
    def is_finished(self) -> bool:
        return self._text.endswith("]")

    def close(self) -> None:
        self.is_open = False


class ListBackend(FakeBackend):
    def __init__(self, forces: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.vocab: Any = ListVocab()
        self._forces = forces

    def open_sampler(self, params: SamplingParams, prompt: Sequence[int], grammar: Any = None) -> Any:
        sampler: Any = ListSampler(self.vocab, params.seed, self._forces)
        self.samplers.append(sampler)
        return sampler


UNIQUE = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}


def checked_task(id: int, schema: Any = None, seed: int = 0, **params: Any) -> Task:
    """A task whose answer is a list of strings that follows a schema."""
    check = _check_of(json.dumps(UNIQUE if schema is None else schema))
    constraint = Constraint(kind="lark", text="a list", field="json_schema", checks=(check,))
    resume = params.pop("resume", [])
    sampling = SamplingParams(seed=seed)
    return Task(
        id=id,
        prompt=[1 + seed % N_VOCAB, 2, 3, EOG] * 3,
        params=GenerationParams(sampling=sampling, constraint=constraint, **params),
        resume=resume,
    )


@cache
def _check_of(schema: str) -> SchemaCheck:
    plan = plan_schema(json.loads(schema), "json_schema", "compact")
    assert plan.check is not None
    return plan.check


class Guesser:
    """A draft model that is told an answer, and what follows its first wrong guess is wrong too."""

    token_ms = 0.0

    def __init__(self, n_prompt: int, answer: Sequence[int]) -> None:
        self._n_prompt = n_prompt
        self._answer = answer
        self._at = 0
        self.n_drafted = 0

    def catch_up(self, seq: int, tokens: np.ndarray, is_brief: bool) -> bool:
        self._at = len(tokens) - self._n_prompt
        return True

    def draft(self, seq: int, n: int, p_min: float) -> list[int]:
        right = list(self._answer[self._at : self._at + min(n, 3)])
        self.n_drafted += len(right)
        return [*right, 5, 6] if n > len(right) + 2 else right

    def forget(self, seq: int) -> None: ...
