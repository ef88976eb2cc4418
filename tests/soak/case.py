"""Requests whose answers are known: seeds are fixed, so all that end normally are the same, token by token.

They are asked of the calm server first. Knows the dialects of answers, nothing of faults.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.soak.wire import Received

GREEDY: dict[str, Any] = {"temperature": 0}
WORDS = (
    "the",
    "and",
    "of",
    "to",
    "in",
    "is",
    "that",
    "it",
    "you",
    "was",
    "for",
    "are",
    "with",
    "not",
    "have",
)
GRAMMAR = 'root ::= ("the " | "and ") [a-z]{4,12} (" of " [a-z]{2,6}){1,3}'
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 200},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer of a request: its text, its tokens if the dialect tells them, and why it ended."""

    text: str = ""
    tokens: tuple[int, ...] = ()
    reason: str = ""


Choices = tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    path: str
    body: dict[str, Any]

    @property
    def n(self) -> int:
        return int(self.body.get("n", 1))

    def read(self, received: Received) -> Choices:
        """As much of the answer as there is."""
        if received.is_stream:
            return self._read_stream(received.events())
        answer = received.json()
        if self.is_native:
            return tuple(_native(one) for one in (answer if isinstance(answer, list) else [answer]))
        ordered = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
        return tuple(Choice(_text(choice), (), choice["finish_reason"]) for choice in ordered)

    @property
    def is_native(self) -> bool:
        return not self.path.startswith("/v1/")

    def _read_stream(self, events: list[Any]) -> Choices:
        texts, reasons = [""] * self.n, [""] * self.n
        tokens: list[list[int]] = [[] for _ in range(self.n)]
        for event in events:
            for part in [event] if self.is_native else event.get("choices", []):
                i = int(part.get("index", 0))
                if self.is_native:
                    texts[i] += part["content"]
                    tokens[i] += part["tokens"]
                    reasons[i] = part.get("stop_type", "")
                else:
                    texts[i] += _text(part)
                    reasons[i] = part["finish_reason"] or reasons[i]
        return tuple(
            Choice(text, tuple(own), reason) for text, own, reason in zip(texts, tokens, reasons, strict=True)
        )


def all_cases() -> list[Case]:
    """Short and long prompts, all dialects, all ways to steer; none continues what another one generated."""
    return [*_native_cases(), *_openai_cases(), *_infill_cases()]


def has_error(events: list[Any]) -> str:
    """What a stream that has begun says of its failure."""
    return next((str(event["error"]["message"]) for event in events if "error" in event), "")


def begins(part: Choices, whole: Choices) -> bool:
    """Whether this is what one gets who leaves before the end."""
    return len(part) == len(whole) and all(
        known.text.startswith(seen.text) and known.tokens[: len(seen.tokens)] == seen.tokens
        for seen, known in zip(part, whole, strict=True)
    )


def _native_cases() -> Iterator[Case]:
    samplers: list[dict[str, Any]] = [
        GREEDY,
        {"seed": 1},
        {"seed": 2, "temperature": 1.5, "top_k": 20},
        {"seed": 3, "repeat_penalty": 1.3, "presence_penalty": 0.2},
        {"seed": 4, "mirostat": 2},
        {"seed": 5, "dry_multiplier": 0.8},
        {"seed": 6, "xtc_probability": 0.5},
        {"seed": 7, "min_p": 0.1, "typical_p": 0.9},
        {"seed": 8, "grammar": GRAMMAR},
        {"seed": 9, "json_schema": SCHEMA},
        {"seed": 10, "logit_bias": [[40, 2.0], [41, False]]},
        {**GREEDY, "n_probs": 3},
    ]
    for i, sampler in enumerate(samplers):
        for n_words in (3, 40, 180):
            yield _native_case(
                f"completion {i}/{n_words}", 100 * i + n_words, n_words, n_predict=24, **sampler
            )
    yield _native_case("stop word", 2000, 12, n_predict=48, seed=11, stop=["e", "in"])
    yield _native_case("long answer", 2001, 5, n_predict=400, seed=12, n_probs=5)
    yield _native_case("no cache", 2002, 30, n_predict=16, seed=13, cache_prompt=False)
    yield _native_case("three answers", 2003, 20, n_predict=16, seed=14, n=3)
    yield _native_case("one token", 2004, 60, n_predict=1, **GREEDY)
    for i in range(4):  # the same beginning: taken from each other's slots, from memory and from disk
        yield _native_case(f"shared {i}", 2005, 150, f" {i} {WORDS[i]}", n_predict=20, seed=20 + i)


def _openai_cases() -> Iterator[Case]:
    for i in range(3):
        prompt = {"prompt": _prompt(3000 + i, 15 + 40 * i), "max_tokens": 20, "seed": 30 + i}
        yield Case(f"text {i}", "/v1/completions", {**prompt, "n": 1 + i % 2})
    for i in range(6):
        messages = [{"role": "user", "content": _prompt(4000 + i, 8 + 20 * i)}]
        if i % 2:
            messages.insert(0, {"role": "system", "content": _prompt(4100, 60)})
        body = {"messages": messages, "max_tokens": 20, "seed": 40 + i, "n": (1, 1, 2)[i % 3]}
        yield Case(f"chat {i}", "/v1/chat/completions", body)
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    messages = [{"role": "user", "content": _prompt(4200, 10)}]
    body = {"messages": messages, "max_tokens": 120, "seed": 50, "response_format": form}
    yield Case("chat schema", "/v1/chat/completions", body)


def _infill_cases() -> Iterator[Case]:
    for i in range(2):
        before, behind = _prompt(5000 + i, 10 + 60 * i), _prompt(5100 + i, 12)
        body = {"input_prefix": before, "input_suffix": behind, "n_predict": 16, "seed": 60 + i}
        yield Case(f"infill {i}", "/infill", {**body, "return_tokens": True})


def _native_case(name: str, theme: int, n_words: int, end: str = "", **fields: Any) -> Case:
    body = {"prompt": _prompt(theme, n_words) + end, "return_tokens": True, **fields}
    return Case(name, "/completion", body)


def _prompt(theme: int, n_words: int) -> str:
    """Text that no other theme begins with."""
    words = random.Random(theme).choices(WORDS, k=n_words)
    return f"{theme} " + " ".join(words)


def _native(answer: dict[str, Any]) -> Choice:
    return Choice(answer["content"], tuple(answer["tokens"]), answer["stop_type"])


def _text(choice: dict[str, Any]) -> str:
    if "text" in choice:
        return str(choice["text"])
    return str((choice.get("message") or choice.get("delta") or {}).get("content") or "")
