"""Many seeded streams at once, and whether each is what it is alone."""

from __future__ import annotations

import asyncio
import collections
import time
from dataclasses import dataclass, field

import httpx
import orjson

from tests.system.process import START_S

N_KINDS = 8  # of requests: the others are the same again


@dataclass(slots=True)
class Answer:
    """Mutable: an answer as far as it has come. `first_s`: until the first token; 0: none came."""

    kind: int
    status: int = 0
    tokens: list[int] = field(default_factory=list)
    first_s: float = 0.0
    is_complete: bool = False


async def expect_alone(url: str, n_predict: int) -> dict[int, list[int]]:
    """Ask for every kind while nothing else runs."""
    async with _client() as http:
        return {kind: (await _ask(http, url, kind, n_predict)).tokens for kind in range(N_KINDS)}


async def ask_all(url: str, n: int, n_predict: int, has_begun: asyncio.Event | None = None) -> list[Answer]:
    """Ask for `n` streams at once; `has_begun` is set with the first token."""
    async with _client() as http:
        return await asyncio.gather(
            *(_ask(http, url, i % N_KINDS, n_predict, has_begun or asyncio.Event()) for i in range(n))
        )


def tell_apart(answers: list[Answer], known: dict[int, list[int]]) -> collections.Counter[str]:
    """Count the answers that are complete, wrong, refused with a 503, or cut."""
    return collections.Counter(_verdict(answer, known[answer.kind]) for answer in answers)


def _verdict(answer: Answer, known: list[int]) -> str:
    if answer.status == 503:
        return "refused"
    if answer.tokens != known[: len(answer.tokens)]:
        return "wrong"
    return "complete" if answer.is_complete and answer.tokens == known else "cut"


def _client() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=START_S, limits=httpx.Limits(max_connections=None))


async def _ask(
    http: httpx.AsyncClient, url: str, kind: int, n_predict: int, has_begun: asyncio.Event | None = None
) -> Answer:
    answer, began = Answer(kind), time.monotonic()
    prompt = f"hello world, this is number {kind}"
    body = {"prompt": prompt, "seed": kind, "n_predict": n_predict, "ignore_eos": True, "stream": True}
    try:
        async with http.stream("POST", url + "/completion", json=body) as response:
            answer.status = response.status_code
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    _add(answer, orjson.loads(line[6:]), began)
                    if has_begun is not None:
                        has_begun.set()
    except httpx.TransportError:
        answer.is_complete = False
    return answer


def _add(answer: Answer, event: dict, began: float) -> None:
    answer.first_s = answer.first_s or time.monotonic() - began
    answer.tokens += event.get("tokens", [])
    answer.is_complete = bool(event.get("stop"))
