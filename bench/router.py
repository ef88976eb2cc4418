"""What many models cost over one: CPU time per token of one stream, on a server with `-m` and on one with
`--models-dir`, in turns. CPU time, which a busy machine disturbs less: `python -m bench.router MODEL`."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import psutil

from bench.client import complete
from bench.process import COMMAND, Corral

_ENGINE = "corral.link.worker"
_OPTIONS = ("-c", 8192, "-t", 1, "-np", 1, "--no-lookup")


class Cost(NamedTuple):
    """CPU seconds."""

    front: float
    engine: float


class Many(Corral):
    """The same model as one of two in a directory."""

    def __init__(self, model: str, *options: object) -> None:
        self._directory = tempfile.TemporaryDirectory()
        for name in ("one", "two"):
            (Path(self._directory.name) / f"{name}.gguf").symlink_to(Path(model).resolve())
        command = [COMMAND, "--models-dir", self._directory.name, "--port", "0", *map(str, options)]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.url = self._wait_until_ready()


async def measure(server: Corral, n_tokens: int) -> Cost:
    """Return the microseconds per token of one stream."""
    before = _spent(server)
    body = {"prompt": "Once upon a time", "n_predict": n_tokens, "ignore_eos": True, "seed": 1}
    await complete(server.url, model="one", cache_prompt=False, **body)
    return Cost(*(1e6 * (now - then) / n_tokens for now, then in zip(_spent(server), before, strict=True)))


def _spent(server: Corral) -> Cost:
    front = psutil.Process(server.pid)
    engine = next(child for child in front.children() if _ENGINE in child.cmdline())
    return Cost(*(sum(process.cpu_times()[:2]) for process in (front, engine)))


async def _compare(model: str, n_rounds: int, n_tokens: int) -> None:
    with closing(Corral(model, *_OPTIONS)) as single, closing(Many(model, *_OPTIONS)) as many:
        for server in (single, many):
            await complete(server.url, model="one", prompt="Hello", n_predict=8)
        found: list[tuple[Cost, Cost]] = []
        for _ in range(n_rounds):
            found.append((await measure(single, n_tokens), await measure(many, n_tokens)))
    for name in Cost._fields:
        pairs = [(getattr(one, name), getattr(other, name)) for one, other in found]
        _report(name, pairs)
    _report("sum", [(sum(one), sum(other)) for one, other in found])


def _report(name: str, pairs: Sequence[tuple[float, float]]) -> None:
    ratios = sorted(other / one for one, other in pairs)
    one, other = (statistics.median(each) for each in zip(*pairs, strict=True))
    least = [min(each) for each in zip(*pairs, strict=True)]
    spread = f"{ratios[0]:.3f} to {ratios[-1]:.3f}; least {least[0]:.1f} and {least[1]:.1f}"
    sys.stdout.write(
        f"{name}: {one:.1f} and {other:.1f} us a token, {statistics.median(ratios):.3f} x ({spread})\n"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=1000)
    given = parser.parse_args()
    asyncio.run(_compare(given.model, given.rounds, given.tokens))
