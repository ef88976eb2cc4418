"""What a running batch costs those who wait for an answer: blocks with and without one alternate.

The CPU time of the engine counts too, since other programs disturb the clock but hardly that.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from operator import truediv
from typing import Any

import httpx
import psutil

from bench.process import Corral
from bench.section import Section
from bench.setup import AS_GIVEN, Setup
from bench.speed import OFF, OPTIONS, prompt_of

TARGET = 1.1
N_SLOTS = 4
N_PROMPT, N_PREDICT = 64, 16
N_LINES, N_LINE_PROMPT, N_LINE_PREDICT = 400, 200, 64
_IN_BLOCK = 4
_WAIT_S = 600
_ENGINE = "corral.link.worker"
_ENDED = ("completed", "cancelled", "failed", "expired")


@dataclass(frozen=True, slots=True)
class Times:
    """Of one answer, in ms: until the first token, between two, and what the engine computed meanwhile."""

    first: float
    gap: float
    longest_gap: float
    cpu_first: float
    cpu_gap: float


Block = list[Times]


async def measure_batch(setup: Setup, section: Section) -> None:
    with tempfile.TemporaryDirectory() as batches:
        shape = ("-c", 1024 * N_SLOTS, "-np", N_SLOTS, "-t", 1, "--batches", batches)
        with (
            closing(Corral(setup.model, *AS_GIVEN, *shape)) as corral,
            httpx.Client(base_url=corral.url, timeout=_WAIT_S) as http,
        ):
            alone, beside = _measure(http, _engine_of(corral), 2 * setup.rounds)
    for name in ("first", "gap", "longest_gap", "cpu_first", "cpu_gap"):
        without, with_batch = (
            [statistics.median(getattr(each, name) for each in block) for block in blocks]
            for blocks in (alone, beside)
        )
        ratio = statistics.median(map(truediv, with_batch, without))
        details = {"alone ms": statistics.median(without), "ms": statistics.median(with_batch)}
        section.at_most(f"{name.replace('_', ' ')} beside a batch", ratio, TARGET, "x", details)


def _measure(http: httpx.Client, engine: psutil.Process, n_blocks: int) -> tuple[list[Block], list[Block]]:
    """Return blocks of answers without a batch, and those with one next to them; they take turns to be
    first."""
    alone: list[Block] = []
    beside: list[Block] = []
    _answer(http, engine, 0)
    for i in range(n_blocks):
        seeds = range(1 + 2 * i * _IN_BLOCK, 1 + 2 * (i + 1) * _IN_BLOCK)
        if i % 2 == 0:
            alone.append([_answer(http, engine, seed) for seed in seeds[:_IN_BLOCK]])
        with _running_batch(http):
            beside.append([_answer(http, engine, seed) for seed in seeds[_IN_BLOCK:]])
        if i % 2:
            alone.append([_answer(http, engine, seed) for seed in seeds[:_IN_BLOCK]])
    return alone, beside


def _answer(http: httpx.Client, engine: psutil.Process, seed: int) -> Times:
    body = {"prompt": prompt_of(N_PROMPT, seed), "n_predict": N_PREDICT, "stream": True, **OPTIONS, **OFF}
    before, started = _cpu_ms(engine), time.perf_counter()
    times: list[float] = []
    cpu: list[float] = []
    with http.stream("POST", "/completion", json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                times.append((time.perf_counter() - started) * 1e3)
                cpu.append(_cpu_ms(engine))
    gaps = [after - before for before, after in pairwise(times[:-1])]
    cpu_gap = (cpu[-2] - cpu[0]) / len(gaps)
    return Times(times[0], statistics.median(gaps), max(gaps), cpu[0] - before, cpu_gap)


@contextmanager
def _running_batch(http: httpx.Client) -> Iterator[None]:
    """Have a batch of long prompts that runs in all slots."""
    id = _submit(http)
    _wait(lambda: all(slot["is_processing"] for slot in http.get("/slots").json()))
    yield
    assert _batch(http, id)["status"] == "in_progress", "the batch is too short"
    http.post(f"/v1/batches/{id}/cancel").raise_for_status()
    _wait(lambda: _batch(http, id)["status"] in _ENDED)


def _submit(http: httpx.Client) -> str:
    options = {"max_tokens": N_LINE_PREDICT, "ignore_eos": True}
    lines = [
        {
            "custom_id": str(i),
            "method": "POST",
            "url": "/v1/completions",
            "body": {"prompt": prompt_of(N_LINE_PROMPT, 1000 + i), **options},
        }
        for i in range(N_LINES)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    file = http.post(
        "/v1/files", files={"file": ("in.jsonl", text.encode())}, data={"purpose": "batch"}
    ).json()
    about = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    return str(http.post("/v1/batches", json=about).json()["id"])


def _batch(http: httpx.Client, id: str) -> dict[str, Any]:
    found: dict[str, Any] = http.get(f"/v1/batches/{id}").json()
    return found


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def _engine_of(corral: Corral) -> psutil.Process:
    children = psutil.Process(corral.pid).children()
    return next(child for child in children if _ENGINE in child.cmdline())


def _cpu_ms(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system) * 1e3
