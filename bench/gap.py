"""The gap in a stream whose engine is drained or killed, by the length of the answer so far, next to the time
of a prompt of that length: `python -m bench.gap [MODEL] [--tokens N ...]`. Two engines with a slot each."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import urllib.parse
from collections.abc import Coroutine
from contextlib import closing
from itertools import pairwise
from time import perf_counter
from typing import Any, Protocol

from bench.client import complete, get, post
from bench.process import Corral
from bench.section import Section
from bench.setup import AS_GIVEN
from corral.cli.default_model import find_default_model

_AFTER = 20  # tokens after the fault
_BODY = {"temperature": 0, "ignore_eos": True, "stream": True, "id_slot": 0}


class Fault(Protocol):
    __name__: str

    def __call__(self, url: str) -> Coroutine[Any, Any, None]: ...


async def drain(url: str) -> None:
    await post(url, "/engines/0/drain", {})


async def kill(url: str) -> None:
    engines = await _engines(url)
    os.kill(engines[0]["pid"], signal.SIGKILL)


async def gap_s(url: str, n: int, fault: Fault) -> float:
    """Return the longest time between two tokens from the n-th on, where the fault happens."""
    address = urllib.parse.urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    prompt = f"{fault.__name__} {n} times"  # nothing of the answer is cached anywhere
    body = json.dumps({**_BODY, "prompt": prompt, "n_predict": n + _AFTER}).encode()
    writer.write(f"POST /completion HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    times: list[float] = []
    happening: asyncio.Task[None] | None = None
    async for line in reader:
        if line.startswith(b"data: {"):
            times.append(perf_counter())
        if len(times) == n and happening is None:
            happening = asyncio.create_task(fault(url))
    writer.close()
    assert happening is not None, "the stream has ended early"
    await happening
    while any(engine["state"] != "ready" for engine in await _engines(url)):
        await asyncio.sleep(0.1)
    return max(after - before for before, after in pairwise(times[n - 1 :]))


async def prompt_s(url: str, n: int) -> float:
    """Return the time of a prompt of `n` tokens."""
    answer = await complete(url, prompt=[20 + i % 200 for i in range(n)], n_predict=1, cache_prompt=False)
    return float(answer.last["timings"]["prompt_ms"]) / 1e3


async def _engines(url: str) -> list[dict[str, Any]]:
    engines: list[dict[str, Any]] = json.loads((await get(url, "/engines"))[1])["engines"]
    return engines


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", metavar="MODEL", nargs="?")
    parser.add_argument("--tokens", type=int, nargs="+", default=[100, 400, 1000, 2000])
    parser.add_argument("--threads", type=int, default=1, help="of each engine")
    parser.add_argument("--batch-exact", action="store_true")
    given = parser.parse_args()
    model, section = given.model or str(find_default_model()), Section("gaps")
    shape = ["-c", 2 * (max(given.tokens) + 64), "-np", 1, "--engines", 2, "-t", given.threads]
    exact = ["--batch-exact"] if given.batch_exact else []
    with closing(Corral(model, *AS_GIVEN, *shape, "--no-lookup", *exact)) as server:
        for n in given.tokens:
            evaluated = await prompt_s(server.url, n)
            drained, killed = await gap_s(server.url, n, drain), await gap_s(server.url, n, kill)
            section.at_most(f"drained after {n} tokens", drained, 0.3, "s")
            section.at_most(f"killed after {n} tokens", killed, evaluated + 3.0, "s", {"prompt s": evaluated})
    return 0 if section.is_met else 1


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
