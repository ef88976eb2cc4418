"""Compare with another server on the same file: what a user would notice, as ratios.

Corral runs with its own defaults, drafts included; the other one as it starts. Requests are the same.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import asdict
from functools import partial

from bench.client import Answer, complete
from bench.competitor import Competitor
from bench.equality import measure_equality
from bench.section import Section, repeat
from bench.setup import Setup
from bench.speed import (
    N_LONG,
    N_PREFIX,
    N_PROMPT,
    OPTIONS,
    Stall,
    decode_many,
    prompt_speed,
    share_prefix,
    stall,
)
from bench.structured import object_seconds

N_SEQ = 4
N_CTX = 3072 * N_SEQ
_N_DECODE = 128
_BEHIND = ((1, 1000), (4, 500))  # streams, and what each of them is about to continue
_TOPICS = ("a ship", "an old house", "the last winter", "a long journey")


async def measure_comparison(setup: Setup, competitor: Competitor, section: Section) -> None:
    with closing(setup.corral_as_used(N_CTX, N_SEQ)) as corral:
        async with competitor.serve(setup.model, N_CTX, N_SEQ) as url:
            await _Pair(competitor.name, corral.url, url, setup.rounds, section).measure()
            await measure_equality(corral.url, url, section)


class _Pair:
    """Both servers, asked in turns."""

    def __init__(self, name: str, ours: str, theirs: str, rounds: int, section: Section) -> None:
        self._name = name
        self._urls = {"Corral": ours, name: theirs}
        self._rounds = rounds
        self._section = section
        self._salts = itertools.count(100, 10)
        self._stalls: dict[str, list[Stall]] = {name: [] for name in self._urls}

    async def measure(self) -> None:
        for url in self._urls.values():
            await one_stream(url)
            await object_seconds(url)
        await self._faster("one stream, decode", one_stream, 1.5)
        await self._faster(f"prompt of {N_PROMPT} tokens", prompt_speed, 3)
        await self._faster(f"{N_SEQ} users together", users_together, 2)
        for n_streams, n_before in _BEHIND:
            name = f"{n_streams} stream{'s' * (n_streams > 1)} behind {n_before} tokens"
            await self._faster(name, partial(decode_many, n_streams=n_streams, n_before=n_before))
        await self._sooner(f"{N_SEQ} clients share {N_PREFIX} tokens, all done", self._prefix_seconds, 5)
        await self._calmer(f"worst gap while {N_LONG} prompt tokens arrive", 1 / 20)
        await self._sooner("JSON objects with four fields", object_seconds, 2)

    async def _faster(
        self, name: str, speed: Callable[[str], Awaitable[float]], target: float | None = None
    ) -> None:
        ours, theirs = await self._both(speed)
        details = {"corral tok/s": ours, f"{self._name} tok/s": theirs}
        if target is None:
            self._section.report(name, ours / theirs, "x", details)
        else:
            self._section.at_least(name, ours / theirs, target, "x", details)

    async def _sooner(self, name: str, seconds: Callable[[str], Awaitable[float]], target: float) -> None:
        ours, theirs = await self._both(seconds)
        details = {"corral s": ours, f"{self._name} s": theirs}
        self._section.at_least(name, theirs / ours, target, "x", details)

    async def _calmer(self, name: str, target: float) -> None:
        ours, theirs = await self._both(self._worst_gap_ms)
        details = {"corral ms": ours, f"{self._name} ms": theirs}
        self._section.at_most(name, ours / theirs, target, "x", details)
        self._section.series = {"gaps": {who: asdict(_middle(all)) for who, all in self._stalls.items()}}

    async def _both(self, value: Callable[[str], Awaitable[float]]) -> list[float]:
        return await repeat(self._rounds, *((lambda url=url: value(url)) for url in self._urls.values()))

    async def _prefix_seconds(self, url: str) -> float:
        answers = await share_prefix(url, N_SEQ, next(self._salts))
        return _all_done(answers)

    async def _worst_gap_ms(self, url: str) -> float:
        found = await stall(url, next(self._salts))
        (name,) = (name for name, at in self._urls.items() if at == url)
        self._stalls[name].append(found)
        return found.worst_ms


async def one_stream(url: str) -> float:
    """Tokens per second of a story, behind its first token."""
    answer = await _story(url, _TOPICS[0])
    return (_n_tokens(answer) - 1) / (answer.times[-1] - answer.times[0])


async def users_together(url: str) -> float:
    """Tokens per second of stories for several users, from asking to the end of the last one."""
    answers = await asyncio.gather(*(_story(url, topic) for topic in _TOPICS))
    return sum(map(_n_tokens, answers)) / _all_done(answers)


async def _story(url: str, topic: str) -> Answer:
    prompt = f"<|im_start|>user\nTell me a long story about {topic}.<|im_end|>\n<|im_start|>assistant\n"
    return await complete(url, prompt=prompt, n_predict=_N_DECODE, **OPTIONS)


def _n_tokens(answer: Answer) -> int:
    return int(answer.last["timings"]["predicted_n"])


def _all_done(answers: list[Answer]) -> float:
    return max(a.times[-1] for a in answers) - min(a.sent_at for a in answers)


def _middle(stalls: list[Stall]) -> Stall:
    return sorted(stalls, key=lambda each: each.worst_ms)[len(stalls) // 2]
