"""Two minutes in which an engine is lost every five seconds, if another one is ready: every answer is what it
is without faults."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import time
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from tests.system.fleet_answer import Answer
from tests.system.process import START_S, CorralProcess
from tests.tools.family import TOOLS

N_ENGINES, N_SLOTS, N_STREAMS = 3, 8, 24
FAULT_S, DRILL_S = 5.0, 120.0
WORDS = 'root ::= ("the cat sat on " [a-z]+ " and ")+'
NUMBERS = {"type": "array", "items": {"type": "integer"}, "minItems": 40}
KINDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"grammar": WORDS},
    {"json_schema": NUMBERS},
    {"lora": [{"id": 0, "scale": 1.0}]},
    {"mirostat": 2},
    {"repeat_penalty": 1.3, "dry_multiplier": 0.8},
    {"chat": {"tools": TOOLS, "tool_choice": "required"}},
    {"chat": {"n": 2, "ignore_eos": True}},
]

_log = logging.getLogger(__name__)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(modifiers):
    shape = ("-c", 1024 * N_SLOTS, "-np", N_SLOTS, "--engines", N_ENGINES, "--engine-timeout", 2, "-t", 1)
    adapter = ("--lora-scaled", modifiers / "lora-a.gguf", 0)
    with CorralProcess("-m", modifiers / "llama-bpe.gguf", *shape, *adapter, "--batch-exact") as server:
        yield server


def ask(server: CorralProcess, stream: int) -> Answer:
    kind, seed = KINDS[stream % len(KINDS)], {"seed": stream}
    if "chat" in kind:
        messages = [{"role": "user", "content": f"Where is it cold, {stream}?"}]
        body = {"messages": messages, "max_tokens": 64, **seed, **kind["chat"]}
        return Answer(server.url, "/v1/chat/completions", body)
    body = {"prompt": f"Story {stream} begins", "n_predict": 64, "ignore_eos": True, **seed, **kind}
    return Answer(server.url, "/completion", body)


async def repeat(server: CorralProcess, stream: int, until: float) -> list[Answer]:
    """One client: asks again as soon as it is answered."""
    answers = []
    while time.monotonic() < until:
        answers.append(ask(server, stream))
        await answers[-1].task
    return answers


async def run_for(server: CorralProcess, seconds: float) -> list[list[Answer]]:
    until = time.monotonic() + seconds
    return await asyncio.gather(*(repeat(server, stream, until) for stream in range(N_STREAMS)))


async def disturb(server: CorralProcess) -> int:
    """Kill or stop an engine again and again, as long as another one is ready; returns how often."""
    dice, until, n = random.Random(31), time.monotonic() + DRILL_S, 0
    async with httpx.AsyncClient(timeout=START_S, base_url=server.url, verify=False) as http:
        while time.monotonic() + FAULT_S < until:
            await asyncio.sleep(FAULT_S)
            engines = (await http.get("/engines")).json()["engines"]
            pids = {engine["pid"] for engine in engines if engine["state"] == "ready"}
            ready = [each for each in server.engines if each.pid in pids and not _is_stopped(each)]
            if len(ready) > 1:
                dice.choice(ready).send_signal(dice.choice([signal.SIGKILL, signal.SIGSTOP]))
                n += 1
    return n


def _is_stopped(engine: psutil.Process) -> bool:
    return engine.status() == psutil.STATUS_STOPPED


def report(name: str, streams: list[list[Answer]], n_faults: int = 0) -> None:
    answers = [answer for stream in streams for answer in stream]
    p50, p99, most = np.percentile([answer.first_s or np.inf for answer in answers], [50, 99, 100])
    counts = f"{len(answers)} answers, {n_faults} faults"
    times = f"first token p50 {p50:.2f} s, p99 {p99:.2f} s, most {most:.2f} s"
    _log.warning("%(name)s: %(counts)s; %(times)s", {"name": name, "counts": counts, "times": times})


async def test_no_answer_changes_or_is_lost_while_engines_are(server):
    calm = await run_for(server, 10)
    expected = [answers[0].said for answers in calm]
    streams, n_faults = await asyncio.gather(run_for(server, DRILL_S), disturb(server))
    report("undisturbed", calm)
    report("drill", streams, n_faults)
    failed = [event for stream in streams for answer in stream for event in answer.events if "error" in event]
    assert failed == []
    assert n_faults > N_ENGINES
    for answers, said in zip(streams, expected, strict=True):
        assert [answer.said for answer in answers] == [said] * len(answers)
