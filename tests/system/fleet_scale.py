"""Have a fleet of two engines with a slot each grow from none, and shrink again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.system.process import CorralProcess, Stream
from tests.tools.wait import wait_until_async

OPTIONS = ["-c", 512, "-np", 1, "-t", 1, "--engines", 2, "--context-shift"]
SCALE = ["--engines-min", 0, "--engines-wait-ms", 100, "--engines-idle-seconds", 1]


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
