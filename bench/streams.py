"""Streams together: the server over the raw loop's batches, and whoever else is there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing
from functools import partial

from bench.overhead import raw_decode
from bench.process import RawLoop
from bench.section import Section, repeat
from bench.setup import AS_GIVEN, AS_USED, Setup
from bench.speed import decode_many

COUNTS = (1, 4, 8, 16)
N_SEQ = max(COUNTS)
N_CTX = 512 * N_SEQ
_N_DECODE = 96
_TARGETS = {1: 0.95}


async def measure_streams(setup: Setup, section: Section) -> None:
    async with AsyncExitStack() as stack:
        raw = stack.enter_context(closing(setup.raw(N_CTX, N_SEQ)))
        urls = {"Corral": stack.enter_context(closing(setup.corral(N_CTX, N_SEQ))).url}
        if AS_USED != AS_GIVEN:
            used = stack.enter_context(closing(setup.corral_as_used(N_CTX, N_SEQ)))
            urls = {"Corral, file as given": urls["Corral"], "Corral": used.url}
        for competitor in setup.competitors:
            urls[competitor.name] = await stack.enter_async_context(
                competitor.serve(setup.model, N_CTX, N_SEQ)
            )
        section.series = {"streams": COUNTS, "lines": {name: [] for name in ("plain libllama", *urls)}}
        for n in COUNTS:
            await _measure(n, raw, urls, setup.rounds, section)


async def _measure(n: int, raw: RawLoop, urls: dict[str, str], rounds: int, section: Section) -> None:
    async def plain() -> float:
        return raw_decode(raw, n, _N_DECODE)

    measures: list[Callable[[], Awaitable[float]]] = [plain]
    measures += [partial(decode_many, url, n, _N_DECODE) for url in urls.values()]
    reference, given, *others = speeds = await repeat(rounds, *measures)
    for line, speed in zip(section.series["lines"].values(), speeds, strict=True):
        line.append(speed)
    details = {"raw tok/s": reference, **dict(zip(urls, (given, *others), strict=True))}
    name = f"{n} streams together" if n > 1 else "1 stream of 16"
    section.at_least(name, given / reference, _TARGETS.get(n, 0.93), "x raw", details)
