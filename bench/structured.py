"""What structured output costs, and what it saves."""

from __future__ import annotations

import json
import time
from contextlib import closing
from functools import partial
from typing import Any

import jsonschema

from bench.client import complete, post
from bench.section import Section, repeat
from bench.setup import Setup
from bench.speed import OFF

N_DECODE = 128
_PROMPT = "A person with an address, as JSON:\n"
_OPTIONS: dict[str, Any] = {
    "n_predict": N_DECODE,
    "ignore_eos": True,
    "seed": 1,
    "cache_prompt": False,
    **OFF,
}
_TEXT = {"type": "string", "maxLength": 24}
PERSON = {
    "type": "object",
    "properties": {
        "name": _TEXT,
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "email": _TEXT,
        "address": {
            "type": "object",
            "properties": {
                "street": _TEXT,
                "city": _TEXT,
                "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
            },
            "required": ["street", "city", "zip"],
        },
    },
    "required": ["name", "age", "email", "address"],
}
# What is said of people, and what is to be made of it.
_PEOPLE = (
    "Anna Berg is 34 years old, lives in Oslo and is married.",
    "Paul Martin is 58 years old, lives in Lyon and is not married.",
    "Maria Rossi is 21 years old, lives in Rome and is not married.",
)
OBJECT = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city": {"type": "string", "maxLength": 30},
        "married": {"type": "boolean"},
    },
    "required": ["name", "age", "city", "married"],
    "additionalProperties": False,
}
_BOUND = {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": OBJECT}}}


async def measure_structured(setup: Setup, section: Section) -> None:
    with closing(setup.corral()) as corral:
        url = corral.url
        free, bound = await repeat(setup.rounds, partial(free_speed, url), partial(bound_speed, url))
        details = {"free tok/s": free, "bound tok/s": bound}
        section.at_least("a stream in a grammar over a free one", bound / free, 0.95, "x", details)
        section.at_least("tokens for each step, a person as JSON", await tokens_per_step(url), 1.5, "x")
        text, whole = await repeat(
            setup.rounds, partial(text_seconds, url), partial(object_seconds, url, **OFF)
        )
        details = {"text s": text, "object s": whole}
        section.at_least("a four-field object over as many free tokens", text / whole, 1.0, "x", details)


async def object_seconds(url: str, **options: Any) -> float:
    """Seconds for an object with four fields, from asking until all of it is there."""
    seconds = 0.0
    for person in _PEOPLE:
        took, answer = await _ask(url, person, **_BOUND, **options)
        seconds += took
        jsonschema.validate(json.loads(answer["choices"][0]["message"]["content"]), OBJECT)
    return seconds / len(_PEOPLE)


async def text_seconds(url: str) -> float:
    """Seconds for as many tokens as such an object has, where the model may write what it likes."""
    seconds = 0.0
    for person in _PEOPLE:
        _, answer = await _ask(url, person, **_BOUND)
        took, _ = await _ask(
            url, person, max_tokens=answer["usage"]["completion_tokens"], ignore_eos=True, **OFF
        )
        seconds += took
    return seconds / len(_PEOPLE)


async def _ask(url: str, person: str, **options: Any) -> tuple[float, dict[str, Any]]:
    content = f"{person} Write this as JSON with name, age, city and married."
    body = {
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "cache_prompt": False,
        **options,
    }
    started = time.perf_counter()
    answer: dict[str, Any] = await post(url, "/v1/chat/completions", body)
    return time.perf_counter() - started, answer


async def tokens_per_step(url: str) -> float:
    """Tokens of an object for each time the model was asked for one."""
    n_tokens = n_steps = 0
    for seed in range(5):
        body = {"prompt": _PROMPT, "json_schema": PERSON, "n_predict": 400, "seed": seed}
        timings = (await post(url, "/completion", body))["timings"]
        n_tokens += timings["predicted_n"]
        n_steps += timings["predicted_n"] - timings.get("forced_n", 0)
    return n_tokens / n_steps


async def free_speed(url: str) -> float:
    """Tokens per second without a grammar."""
    return await _speed(url)


async def bound_speed(url: str) -> float:
    """Tokens per second inside of one long JSON string, where nothing is forced."""
    return await _speed(url, json_schema={"type": "string", "minLength": 4000})


async def _speed(url: str, **options: Any) -> float:
    answer = await complete(url, prompt=_PROMPT, **_OPTIONS, **options)
    return (N_DECODE - 1) / (answer.times[-1] - answer.times[0])
