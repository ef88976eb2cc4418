"""From the command to the first answer of `/health`, and until all is well, over the bare load of a model."""

from __future__ import annotations

from contextlib import closing

from bench.process import COMMAND, Server
from bench.section import Section
from bench.setup import AS_USED, Setup

N_CTX = 8192
_TRIES = 3


async def measure_start(setup: Setup, section: Section) -> None:
    """The best of a few: any disturbance only adds, and files are in memory from the first one on."""
    raw = min(_raw_load(setup) for _ in range(_TRIES))
    first, healthy = await _best_start(COMMAND, setup.model, *AS_USED, "-c", N_CTX)
    theirs = {
        competitor.name: (await _best_start(competitor.where, setup.model, "-c", N_CTX))[1]
        for competitor in setup.competitors
        if competitor.is_program
    }
    section.at_most("from the command to the first answer", first, 0.3, "s")
    details = {"raw s": raw, "corral s": healthy, **theirs}
    section.at_most("from the command to healthy, over the raw load", healthy - raw, 2.0, "s", details)


async def _best_start(program: str, model: str, *options: object) -> tuple[float, float]:
    starts = [await _start(program, model, *options) for _ in range(_TRIES)]
    return min(first for first, _ in starts), min(healthy for _, healthy in starts)


async def _start(program: str, model: str, *options: object) -> tuple[float, float]:
    with closing(Server(program, model, *options)) as server:
        return await server.first_answer_s(), await server.healthy_s()


def _raw_load(setup: Setup) -> float:
    with closing(setup.raw(N_CTX, 1)) as raw:
        return raw.measure("load")
