"""Have a fleet of two engines grow, and shrink again: from none to none, and under load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.system.process import CorralProcess, Stream
from tests.tools.wait import wait_until_async

OPTIONS = ["-c", 512, "-np", 1, "-t", 1, "--engines", 2, "--context-shift"]
SCALE = ["--engines-min", 0, "--engines-wait-ms", 100, "--engines-idle-seconds", 1]
N_SLOTS, N_CTX = 6, 16384
LOADED = ["-c", N_SLOTS * N_CTX, "-np", N_SLOTS, "-t", 1, "--engines", 2, "--batch-exact"]


async def grow_and_shrink(server: CorralProcess, n_engines: Callable[[], int]) -> None:
    await wait_until_async(lambda: n_engines() == 0, 0.1)
    body = {"prompt": "hello world", "n_predict": -1, "temperature": 0, "ignore_eos": True}
    endless = [Stream(server.url, **body)]
    await endless[0].reach(16)
    assert n_engines() == 1
    endless.append(Stream(server.url, **body))
    await endless[1].reach(16)
    assert n_engines() == 2
    for stream in endless:
        stream.task.cancel()
        await asyncio.wait({stream.task})
    await wait_until_async(lambda: n_engines() == 0, 0.1)
    again = Stream(server.url, **{**body, "n_predict": 16})
    await again.task
    assert [stream.tokens[:16] for stream in endless] == [again.tokens] * 2


async def shrink_while_streaming(server: CorralProcess, n_engines: Callable[[], int]) -> None:
    """One stream too many starts an engine, which takes half of the others; without two of them one engine is
    enough, and gets the rest of the other's. All streams are to say the same."""
    body = {"prompt": "hello world", "n_predict": N_CTX - 100, "temperature": 0, "ignore_eos": True}
    streams = [Stream(server.url, **body) for _ in range(N_SLOTS + 1)]
    for stream in streams[:N_SLOTS]:
        await stream.reach(5)
    await wait_until_async(lambda: sorted(n_running(server)) == [3, 4], 0.1)
    for stream in streams[:2]:
        stream.task.cancel()
    await wait_until_async(lambda: n_engines() == 1, 0.1)
    await wait_until_async(lambda: sorted(n_running(server)) == [0, 5], 0.1)
    for stream in streams[2:]:
        await stream.reach(len(stream.events) + 20)
        stream.task.cancel()
    await asyncio.wait({stream.task for stream in streams})
    longest = max((stream.tokens for stream in streams), key=len)
    assert all(stream.tokens == longest[: len(stream.tokens)] for stream in streams)
    assert [engine["n_restarts"] for engine in engines_of(server)] == [0, 0]


def n_running(server: CorralProcess) -> list[int]:
    return [engine["n_running"] for engine in engines_of(server)]


def engines_of(server: CorralProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.get("/engines").json()["engines"]
    return found
