"""`make bench`: how fast the server is, as ratios within one run.

Rounds of what is compared alternate; medians count. `--against NAME=URL`, or `NAME=PROGRAM` to be started
here, compares with a llama-server-compatible server on the same file. bench/out/bench.json has it all.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from bench import compare, streams
from bench.batch import measure_batch
from bench.chat import measure_chat
from bench.checkpoint import measure_checkpoint
from bench.competitor import Competitor, parse_competitor
from bench.embedding import measure_embedding
from bench.media import measure_media
from bench.overhead import measure_memory, measure_overhead, measure_sharing
from bench.report import COMPARE, read_report, write_report
from bench.section import Section
from bench.server_only import measure_server_only
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
    "batch": measure_batch,
    "chat": measure_chat,
    "structured": measure_structured,
    "state": measure_state,
    "checkpoint": measure_checkpoint,
    "start": measure_start,
    "memory": measure_memory,
    "speculative": measure_speculative,
    "embedding": measure_embedding,
    "media": measure_media,
    "server": measure_server_only,
}
# What competitors are asked for, context and slots.
SHAPES = {"streams": (streams.N_CTX, streams.N_SEQ), COMPARE: (compare.N_CTX, compare.N_SEQ)}


def parse_arguments(arguments: Sequence[str] | None = None) -> tuple[Setup, list[str]]:
    """The setup, and the names of sections to be measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", default=str(find_default_model()))
    parser.add_argument("-fa", "--flash-attn", default="off", choices=("on", "off"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--against", action="append", default=[], metavar="NAME=URL|NAME=PROGRAM", type=parse_competitor
    )
    parser.add_argument("--only", metavar="SECTION,...", help=", ".join((*SECTIONS, COMPARE)))
    options = parser.parse_args(arguments)
    competitors: list[Competitor] = options.against
    known = [*SECTIONS, COMPARE] if competitors else [*SECTIONS]
    chosen = options.only.split(",") if options.only else known
    if unknown := [name for name in chosen if name not in known]:
        parser.error(f"no section '{unknown[0]}'" + (" without --against" if unknown[0] == COMPARE else ""))
    setup = Setup(options.model, options.flash_attn, options.rounds, tuple(competitors))
    return setup, [name for name in known if name in chosen]


def plan(setup: Setup, names: Sequence[str]) -> dict[str, Callable[[Section], Awaitable[None]]]:
    """What to measure, by the titles of its sections."""
    measures: dict[str, Callable[[Section], Awaitable[None]]] = {}
    for name in names:
        if name == COMPARE:
            for competitor in setup.competitors:
                measures[f"{COMPARE} {competitor.name}"] = partial(
                    compare.measure_comparison, setup, competitor
                )
        else:
            measures[name] = partial(SECTIONS[name], setup)
    return measures


async def main() -> int:
    setup, names = parse_arguments()
    for competitor in setup.competitors:
        for shape in (SHAPES[name] for name in names if name in SHAPES):
            await competitor.check(setup.model, *shape)
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
