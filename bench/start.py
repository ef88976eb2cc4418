"""From the command to the first answer of `/health`, and until all is well, over the bare load of a model.

`python -m bench.start [-m FILE] [--against NAME=PROGRAM]` alternates the programs, and also shows the CPU
time of each process until all is well: other work on the machine changes it less than the seconds.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from bench.process import COMMAND, Server
from bench.section import Section
from bench.setup import AS_USED, Setup

N_CTX = 8192
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Start:
    """The best of several: any disturbance only adds, and files are in memory from the first one on."""

    first_s: float
    healthy_s: float
    cpu_s: Mapping[str, float]  # by process

    def best(self, other: Start) -> Start:
        cpu_s = {name: min(each, other.cpu_s.get(name, each)) for name, each in self.cpu_s.items()}
        return Start(min(self.first_s, other.first_s), min(self.healthy_s, other.healthy_s), cpu_s)

    def __str__(self) -> str:
        cpu = ", ".join(f"{name} {each:.2f}" for name, each in self.cpu_s.items())
        total = sum(self.cpu_s.values())
        return f"first {self.first_s:.2f} s, ready {self.healthy_s:.2f} s; CPU {total:.2f} s ({cpu})"


async def measure_start(setup: Setup, section: Section) -> None:
    raw = min(_raw_load(setup) for _ in range(_TRIES))
    corral, *others = (await compare_starts(setup, _TRIES)).items()
    theirs = {name: start.healthy_s for name, start in others}
    section.at_most("from the command to the first answer", corral[1].first_s, 0.3, "s")
    healthy = corral[1].healthy_s
    details = {"raw s": raw, "corral s": healthy, **theirs}
    section.at_most("from the command to healthy, over the raw load", healthy - raw, 2.0, "s", details)


async def compare_starts(setup: Setup, n_rounds: int) -> dict[str, Start]:
    """The starts of Corral and of every competitor that is a program; rounds alternate."""
    programs: dict[str, Sequence[str]] = {"corral": (COMMAND, *AS_USED)}
    programs |= {each.name: (each.where,) for each in setup.competitors if each.is_program}
    best: dict[str, Start] = {}
    for _ in range(n_rounds):
        for name, (program, *options) in programs.items():
            start = await _start(program, setup.model, *options, "-c", N_CTX)
            best[name] = start.best(best.get(name, start))
    return best


async def _start(program: str, model: str, *options: object) -> Start:
    with closing(Server(program, model, *options)) as server:
        return Start(await server.first_answer_s(), await server.healthy_s(), server.cpu_s())


def _raw_load(setup: Setup) -> float:
    with closing(setup.raw(N_CTX, 1)) as raw:
        return raw.measure("load")


async def main() -> None:
    from bench.run import parse_arguments  # which imports this module

    setup, _ = parse_arguments([*sys.argv[1:], "--only", "start"])
    for name, start in (await compare_starts(setup, setup.rounds)).items():
        print(f"{name:<16} {start}")


if __name__ == "__main__":
    asyncio.run(main())
