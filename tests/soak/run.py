"""A soak from start to end: the real command, known answers, phases of traffic under faults.

Phases: warm up, then faults, then the same traffic without harm to the engine, so that one becomes old.
Memory, descriptors and threads are looked at when nothing is going on, at the end of each phase.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from tests.soak.case import all_cases
from tests.soak.fault import Crowd, EngineFaults
from tests.soak.finish import finish
from tests.soak.footprint import Mark, take_mark
from tests.soak.report import Health, Report
from tests.soak.score import Score
from tests.soak.traffic import MAX_BODY_MIB, N_SLOTS, RecordMiddleware, drive, learn
from tests.system.process import CorralProcess
from tests.tools.tiny_models import llama_fim

N_CTX = 1024 * N_SLOTS
ENGINE_TIMEOUT_S = 2
SPARE_FDS = 400  # beside those of the crowd


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything. `faults_every_s`: from and to."""

    n_requests: int = 10_000
    n_clients: int = 16
    n_idle: int = 500
    n_dribbling: int = 100
    faults_every_s: tuple[float, float] = (1.0, 4.0)
    min_losses: int = 20  # of engines; there are more requests if it takes more
    seed: int = 1
    patience_s: float = 300.0

    @property
    def phases(self) -> list[tuple[str, int, bool]]:
        """Name, requests, and whether engines are harmed."""
        warm_up, faults, settle = self.n_requests // 10, self.n_requests * 6 // 10, self.n_requests // 10
        rest = self.n_requests - warm_up - faults - settle
        return [
            ("warm up", warm_up, True),
            ("faults", faults, True),
            ("settle", settle, False),
            ("grow old", rest, False),
        ]


def soak(plan: Plan) -> Report:
    """Runs the plan; whatever should not have happened is in the report."""
    plan = _fitting(plan)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="soak-") as directory:
        folder = Path(directory)
        with _server(folder) as server:
            part = asyncio.run(_soak(plan, server))
            exit_code, log = finish(server)
        leftovers = [*folder.rglob(".pending*"), *folder.rglob("*.part")]
        return replace(
            part,
            exit_code=exit_code,
            n_tracebacks=log.count("Traceback"),
            left_behind=[path.name for path in leftovers],
            seconds=round(time.monotonic() - began, 1),
        )


async def _soak(plan: Plan, server: CorralProcess) -> Report:
    host, port = server.url.removeprefix("http://").split(":")
    address, front, score = (host, int(port)), psutil.Process(server.process.pid), Score()
    traffic = RecordMiddleware(address, await learn(address, all_cases(), score), score)
    faults = EngineFaults(
        front, address, score, random.Random(plan.seed), plan.faults_every_s, plan.patience_s
    )
    marks: list[Mark] = []
    async with _probed(address) as health:
        for i, (name, n, is_harmed) in enumerate(plan.phases):
            crowd = Crowd(address, score, plan.n_idle, plan.n_dribbling)
            await crowd.gather()
            harm = asyncio.create_task(faults.run()) if is_harmed else None
            await drive(traffic, n, plan.n_clients, f"{plan.seed} {i}", plan.patience_s)
            while name == "faults" and len(faults.recovery_s) < plan.min_losses and not score.n_problems:
                seed = f"{plan.seed} {score.counts['requests']}"
                await drive(traffic, n // 10, plan.n_clients, seed, plan.patience_s)
            if harm is not None:
                faults.end()
                await harm
            await crowd.disperse()
            n_so_far = score.counts["requests"]
            marks.append(await take_mark(name, n_so_far, front, address, plan.patience_s))
    return Report(plan.seed, plan.n_idle, plan.n_dribbling, score, marks, health, faults.recovery_s)


@asynccontextmanager
async def _probed(address: tuple[str, int]) -> AsyncIterator[Health]:
    """What is known of `/health` at the end."""
    command = [sys.executable, "-m", "tests.soak.probe", *map(str, address)]
    probe = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    health = Health()
    try:
        yield health
    finally:
        output, _ = await asyncio.to_thread(probe.communicate, b"\n")
        found = json.loads(output)
        health.took_ms, health.statuses, health.problems = (
            sorted(found["took_ms"]),
            found["statuses"],
            found["problems"],
        )


@contextmanager
def _server(folder: Path) -> Iterator[CorralProcess]:
    (folder / "saves").mkdir()
    options = {
        "-m": llama_fim(folder / "models"),
        "-c": N_CTX,
        "-np": N_SLOTS,
        "-t": 1,
        "--slot-save-path": folder / "saves",
        "--sessions-ram": 1,
        "--cache-ram": 2,
        "--cache-disk": folder / "cache",
        "--cache-disk-gib": 1,
        "--max-body-mb": MAX_BODY_MIB,
        "--engine-timeout": ENGINE_TIMEOUT_S,
    }
    words = [word for pair in options.items() for word in pair]
    with CorralProcess(*words, "--slots", "--metrics") as server:
        yield server


def _fitting(plan: Plan) -> Plan:
    """Raises the limit of descriptors, for the server too; fewer sockets where that is not allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = plan.n_idle + plan.n_dribbling + SPARE_FDS
    if hard != resource.RLIM_INFINITY and hard < wanted:
        share = max(0, hard - SPARE_FDS) / (plan.n_idle + plan.n_dribbling)
        plan = replace(plan, n_idle=int(plan.n_idle * share), n_dribbling=int(plan.n_dribbling * share))
        wanted = hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return plan
