"""What structured output costs, and what it saves."""

from __future__ import annotations

from bench.client import complete, post
from bench.speculative import OFF

N_DECODE = 128
_PROMPT = "A person with an address, as JSON:\n"
_OPTIONS = {"n_predict": N_DECODE, "ignore_eos": True, "seed": 1, "cache_prompt": False, **OFF}
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


async def _speed(url: str, **options: object) -> float:
    answer = await complete(url, prompt=_PROMPT, **_OPTIONS, **options)
    return (N_DECODE - 1) / (answer.times[-1] - answer.times[0])
