"""Heavy requests, many streams, competing keys and a SIGTERM under load: `python -m tests.soak.pressure`.

Prints a page of numbers as Markdown tables and ends with 1 if a promise was broken. Times are told, not
judged: they depend on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.contest import compete
from tests.soak.crowd import Answer, ask_all, expect_alone, tell_apart
from tests.system.heavy import ROWS, Seen, measure, measure_slow, read_pause
from tests.system.process import CorralProcess
from tests.tools.tiny_models import llama_bpe

OUT = Path(".cache") / "pressure.md"
MAX_KEPT_MIB = 30
N_SLOTS, N_CTX = 4, 4096
N_SLOW = 8
N_ENDED = 24  # streams when the SIGTERM comes


@dataclass(frozen=True, slots=True)
class Plan:
    n_repeats: int = 10
    n_streams: int = 200
    n_predict: int = 100
    contest_s: float = 20.0


@dataclass(slots=True)
class Page:
    """Mutable: what was measured, and which promises were broken."""

    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def table(self, title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        sys.stderr.write(f"done: {title}\n")
        self.lines += ["", title, "", f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
        self.lines += [f"| {' | '.join(map(str, row))} |" for row in rows]

    def expect(self, condition: bool, problem: str) -> None:
        if not condition:
            self.problems.append(problem)


def press(plan: Plan) -> Page:
    page = Page()
    with tempfile.TemporaryDirectory(prefix="soak-") as directory:
        model = llama_bpe(Path(directory))
        options = ("-m", model, "-c", N_CTX, "-np", N_SLOTS, "--metrics", "--send-timeout", 2)
        with CorralProcess(*options) as server:
            server.complete(prompt="a", n_predict=1)
            if plan.n_repeats:
                _press_rows(server, plan, page)
            asyncio.run(_press_streams(server, plan, page))
            asyncio.run(_press_end(server, plan, page))
            _look_at_log(server, page)
        keys = Path(directory) / "keys"
        keys.write_text("many:sk-many\nfew:sk-few\n")
        with CorralProcess(*options, "--api-key-file", keys) as server:
            _press_keys(server, plan, page)
    return page


def _press_rows(server: CorralProcess, plan: Plan, page: Page) -> None:
    found = []
    for name, row in ROWS.items():
        measure(server, row, 1)  # what is allocated once
        seen = measure(server, row, plan.n_repeats)
        page.expect(set(seen.statuses) == {row.status}, f"{name}: answered {set(seen.statuses)}")
        page.expect(seen.kept_mib < MAX_KEPT_MIB, f"{name}: {seen.kept_mib:.0f} MiB kept")
        found.append(_row(name, str(row.status), seen))
        sys.stderr.write(f"{name}: {seen}\n")
    measure_slow(server, N_SLOW)
    found.append(_row(f"{N_SLOW} clients that do not read", "cut off", measure_slow(server, N_SLOW)))
    head = ("request", "status", "loop, median", "loop, worst", "`/health`, median", "worst", "kept")
    page.table(f"Heavy requests, {plan.n_repeats} repeats of each", head, found)


def _row(name: str, status: str, seen: Seen) -> tuple[str, ...]:
    pauses = seen.pauses_cpu_s
    return (
        name,
        status,
        _ms(statistics.median(pauses)),
        _ms(max(pauses)),
        _ms(statistics.median(seen.health_s)),
        _ms(max(seen.health_s)),
        f"{max(0, round(seen.kept_mib))} MiB",
    )


async def _press_streams(server: CorralProcess, plan: Plan, page: Page) -> None:
    """All at once, each as if it were alone."""
    known = await expect_alone(server.url, plan.n_predict)
    read_pause(server)
    began = time.monotonic()
    answers = await ask_all(server.url, plan.n_streams, plan.n_predict)
    seconds, pause = time.monotonic() - began, read_pause(server)
    counts = tell_apart(answers, known)
    page.expect(counts["complete"] == plan.n_streams, f"{plan.n_streams} streams: {dict(counts)}")
    page.table(
        f"{plan.n_streams} streams at once on {N_SLOTS} slots, {plan.n_predict} tokens each",
        ("complete and the same as alone", "time", "tokens/s", "first token, median", "worst", "loop, worst"),
        [
            (
                counts["complete"],
                f"{seconds:.1f} s",
                round(plan.n_streams * plan.n_predict / seconds),
                *_first_tokens(answers),
                _ms(pause["cpu"]),
            )
        ],
    )


def _first_tokens(answers: Sequence[Answer]) -> tuple[str, str]:
    waits = [answer.first_s for answer in answers if answer.first_s]
    return f"{statistics.median(waits):.1f} s", f"{max(waits):.1f} s"


async def _press_end(server: CorralProcess, plan: Plan, page: Page) -> None:
    """A SIGTERM while some streams are answered and others wait for a slot."""
    known = await expect_alone(server.url, plan.n_predict)
    began_all = asyncio.Event()
    asking = asyncio.ensure_future(ask_all(server.url, N_ENDED, plan.n_predict, began_all))
    await began_all.wait()
    began = time.monotonic()
    server.process.terminate()
    counts = tell_apart(await asking, known)
    code = await asyncio.to_thread(server.process.wait)
    seconds = time.monotonic() - began
    page.expect(code == 0, f"SIGTERM under load: exit code {code}")
    page.expect(not counts["cut"] and not counts["wrong"], f"SIGTERM under load: {dict(counts)}")
    page.table(
        f"SIGTERM while {N_ENDED} streams run or wait",
        ("complete", "refused (503)", "cut", "exit code", "until the end"),
        [(counts["complete"], counts["refused"], counts["cut"], code, f"{seconds:.1f} s")],
    )


def _press_keys(server: CorralProcess, plan: Plan, page: Page) -> None:
    clients = {"sk-many": 24, "sk-few": 3}
    shares = asyncio.run(compete(server.url, clients, plan.contest_s))
    total = sum(share.n_tokens for share in shares.values()) or 1
    page.expect(all(share.n_tokens for share in shares.values()), f"a key got nothing: {shares}")
    rows = [
        (
            key.removeprefix("sk-"),
            clients[key],
            share.n_answers,
            share.n_tokens,
            f"{share.n_tokens / total:.0%}",
            f"{share.median_s:.2f} s",
        )
        for key, share in shares.items()
    ]
    head = ("key", "clients", "answers", "tokens", "share", "an answer, median")
    page.table(f"Two keys for {plan.contest_s:g} s on {N_SLOTS} slots", head, rows)


def _look_at_log(server: CorralProcess, page: Page) -> None:
    log = "".join(server.lines)
    page.expect("Traceback" not in log, "there are tracebacks in the log")
    page.expect("engine died" not in log, "an engine was lost")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"


def main() -> int:
    page = press(_arguments())
    text = "\n".join([*page.lines, "", *(f"PROBLEM: {problem}" for problem in page.problems)])
    sys.stdout.write(text.strip() + "\n")
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(text.strip() + "\n")
    return 1 if page.problems else 0


def _arguments() -> Plan:
    default = Plan()
    parser = argparse.ArgumentParser(prog="python -m tests.soak.pressure", description=__doc__.split("\n")[0])
    for name, value in (
        ("--n-repeats", default.n_repeats),
        ("--n-streams", default.n_streams),
        ("--n-predict", default.n_predict),
        ("--contest-s", default.contest_s),
    ):
        parser.add_argument(name, type=type(value), default=value, help="default: %(default)s")
    return Plan(**vars(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
