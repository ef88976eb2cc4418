"""What Ray costs a stream: time between tokens with an engine of a Ray cluster over that with a local one, in
turns, and the CPU time of a token. Starts a cluster on 127.0.0.1, unless `--ray` names one on this machine:
`python -m bench.cluster [MODEL ...]`.

The default model and a tiny one, where the way of a token counts most."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path

import psutil

from bench.client import complete
from bench.process import COMMAND, Corral, free_port
from bench.section import Section
from bench.setup import AS_GIVEN
from bench.speed import OFF, OPTIONS
from corral.cli.default_model import find_default_model
from corral.fleet.ray.host import EngineHost
from tests.tools.tiny_models import llama_bpe

TARGET = 1.05
_N_CTX = 1024  # of a slot


async def token_ms(url: str, n_streams: int, n_tokens: int) -> float:
    """Return the mean time between two tokens of a stream, of streams that run together."""
    answers = await asyncio.gather(
        *(
            complete(url, prompt=f"Once upon a time there were {i}", n_predict=n_tokens, **OPTIONS, **OFF)
            for i in range(n_streams)
        )
    )
    return statistics.mean(1e3 * each.decode_s / (len(each.times) - 2) for each in answers)


def cpu_ms(server: Corral, actor: str = "") -> float:
    """Return the CPU time of a server and its processes so far, and of the actor of its engine."""
    roots = [psutil.Process(server.pid)]
    if actor:
        all = psutil.process_iter(["cmdline"])
        roots += [each for each in all if actor in " ".join(each.info["cmdline"] or ())]
    times = [each.cpu_times() for root in roots for each in (root, *root.children(recursive=True))]
    return 1e3 * sum(each.user + each.system for each in times)


async def compare(
    local: Corral, ray: Corral, given: argparse.Namespace, n_streams: int, section: Section
) -> None:
    """Measure both servers in turns: the median of the ratios of each round."""
    await asyncio.gather(*(token_ms(each.url, n_streams, given.tokens) for each in (local, ray)))  # warm up
    before = [cpu_ms(local), cpu_ms(ray, EngineHost.__name__)]
    pairs = [
        [await token_ms(each.url, n_streams, given.tokens) for each in (local, ray)]
        for _ in range(given.rounds)
    ]
    after = [cpu_ms(local), cpu_ms(ray, EngineHost.__name__)]
    n_tokens = given.rounds * given.tokens * n_streams
    used = [(then - now) / n_tokens for now, then in zip(before, after, strict=True)]
    ratios = sorted(there / here for here, there in pairs)
    here, there = (statistics.median(each) for each in zip(*pairs, strict=True))
    details = {"local ms": here, "Ray ms": there, "least": ratios[0], "most": ratios[-1]}
    details |= {"local CPU ms": used[0], "Ray CPU ms": used[1]}
    name = f"{section.name}, {n_streams} stream{'s' if n_streams > 1 else ''}"
    section.at_most(name, statistics.median(ratios), TARGET, "x local", details)


async def measure(model: str, address: str, given: argparse.Namespace) -> Section:
    section, n_slots = Section(Path(model).stem), max(given.streams)
    options = [*AS_GIVEN, "-c", _N_CTX * n_slots, "-np", n_slots, "-t", given.threads, "--no-lookup"]
    with (
        closing(Corral(model, *options)) as local,
        closing(Corral(model, *options, "--ray", address)) as ray,
    ):
        for n_streams in given.streams:
            await compare(local, ray, given, n_streams, section)
    return section


@contextmanager
def cluster(n_cpus: int) -> Iterator[str]:
    """A cluster of one node, with a secret of its own. There must be no other one on this machine."""
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    port = free_port()
    subprocess.run([COMMAND, "cluster", "up", "--port", str(port), "--cpus", str(n_cpus)], check=True)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        subprocess.run([COMMAND, "cluster", "down"], check=True)


def _at(given: argparse.Namespace) -> AbstractContextManager[str]:
    return nullcontext(given.ray) if given.ray else cluster(given.threads)


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", metavar="MODEL", nargs="*")
    parser.add_argument("--ray", metavar="HOST:PORT", default="")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1, help="of each engine")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4], help="that run together")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, _at(given) as address:
        models = given.models or [str(llama_bpe(Path(folder))), str(find_default_model())]
        sections = [await measure(model, address, given) for model in models]
    return 0 if all(section.is_met for section in sections) else 1


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
