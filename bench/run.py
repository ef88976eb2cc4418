"""`make bench`: how fast the server is, as ratios within one run.

Rounds of what is compared alternate; medians count. `--against NAME=URL`, or `NAME=PROGRAM` to be started
here, measures a llama-server-compatible server on the same file beside. bench/out/bench.json has it all.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from bench import beside, streams
from bench.chat import measure_chat
from bench.embedding import measure_embedding
from bench.media import measure_media
from bench.overhead import measure_memory, measure_overhead, measure_sharing
from bench.report import BESIDE, read_report, write_report
from bench.rival import Rival, parse_rival
from bench.section import Section
from bench.setup import Setup
from bench.speculative import measure_speculative
from bench.start import measure_start
from bench.state import measure_state
from bench.structured import measure_structured
from corral.cli.default_model import find_default_model

Measure = Callable[[Setup, Section], Awaitable[None]]
SECTIONS: dict[str, Measure] = {
    "overhead": measure_overhead,
    "streams": streams.measure_streams,
    "sharing": measure_sharing,
    "chat": measure_chat,
    "structured": measure_structured,
    "state": measure_state,
    "start": measure_start,
    "memory": measure_memory,
    "speculative": measure_speculative,
    "embedding": measure_embedding,
    "media": measure_media,
}
# What rivals are asked for, context and slots.
SHAPES = {"streams": (streams.N_CTX, streams.N_SEQ), BESIDE: (beside.N_CTX, beside.N_SEQ)}


def parse_arguments(arguments: Sequence[str] | None = None) -> tuple[Setup, list[str]]:
    """The setup, and the names of sections to be measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", default=str(find_default_model()))
    parser.add_argument("-fa", "--flash-attn", default="off", choices=("on", "off"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--against", action="append", default=[], metavar="NAME=URL|NAME=PROGRAM", type=parse_rival
    )
    parser.add_argument("--only", metavar="SECTION,...", help=", ".join((*SECTIONS, BESIDE)))
    options = parser.parse_args(arguments)
    rivals: list[Rival] = options.against
    known = [*SECTIONS, BESIDE] if rivals else [*SECTIONS]
    chosen = options.only.split(",") if options.only else known
    if unknown := [name for name in chosen if name not in known]:
        parser.error(f"no section '{unknown[0]}'" + (" without --against" if unknown[0] == BESIDE else ""))
    setup = Setup(options.model, options.flash_attn, options.rounds, tuple(rivals))
    return setup, [name for name in known if name in chosen]


def plan(setup: Setup, names: Sequence[str]) -> dict[str, Callable[[Section], Awaitable[None]]]:
    """What to measure, by the titles of its sections."""
    measures: dict[str, Callable[[Section], Awaitable[None]]] = {}
    for name in names:
        if name == BESIDE:
            for rival in setup.rivals:
                measures[f"{BESIDE} {rival.name}"] = partial(beside.measure_beside, setup, rival)
        else:
            measures[name] = partial(SECTIONS[name], setup)
    return measures


async def main() -> int:
    setup, names = parse_arguments()
    for rival in setup.rivals:
        for shape in (SHAPES[name] for name in names if name in SHAPES):
            await rival.check(setup.model, *shape)
    is_whole = set(SECTIONS) <= set(names)
    report = {} if is_whole else read_report()
    is_met = True
    for title, measure in plan(setup, names).items():
        print(f"\n{title}", flush=True)
        section = Section(title)
        await measure(section)
        report[title] = section.as_json()
        write_report(report)
        is_met = is_met and section.is_met
    return 0 if is_met else 1


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
