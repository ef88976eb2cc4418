"""What a server costs around the model: streams and short requests on a model that takes next to no time.

A model of some hundred thousand parameters makes libllama's part vanish, so that ratios show what many
streams on a fast GPU would feel, on any CPU.
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

from bench.load import Streams, requests_per_s, run_streams
from bench.process import Corral
from bench.section import Section, repeat
from bench.setup import Setup
from tests.tools.tiny_models import llama_bpe

COUNTS = (1, 8, 32, 64)
N_CTX_SLOT = 512
N_PREDICT = 128
_N_PROMPT = 64
_CLIENTS = (1, 16)
_TEXT = "The quick brown fox jumps over the lazy dog. " * 4
_SHORT: dict[str, tuple[str, dict[str, Any] | None]] = {
    "/health": ("/health", None),
    "/tokenize": ("/tokenize", {"content": _TEXT}),
    "/detokenize": ("/detokenize", {"tokens": list(range(100, 160))}),
    "/completion of one token": ("/completion", {"prompt": "Hello", "n_predict": 1}),
}
_N_REQUESTS = 1000

Measure = Callable[[], Awaitable[float]]


async def measure_server_only(setup: Setup, section: Section) -> None:
    with tempfile.TemporaryDirectory() as directory:
        model = str(llama_bpe(Path(directory)))
        n_seq = max(COUNTS)
        async with AsyncExitStack() as stack:
            ours = Corral(model, "-c", N_CTX_SLOT * n_seq, "-np", n_seq, "-t", 1)
            urls = {"corral": stack.enter_context(closing(ours)).url}
            for competitor in setup.competitors:
                if competitor.is_program:
                    server = competitor.serve(model, N_CTX_SLOT * n_seq, n_seq, n_threads=1)
                    urls[competitor.name] = await stack.enter_async_context(server)
            await _measure(urls, setup.rounds, section)


async def _measure(urls: dict[str, str], rounds: int, section: Section) -> None:
    for n in COUNTS:
        speeds = await _each(urls, rounds, partial(_tokens_per_s, n=n))
        _compare(section, f"{n} stream{'s' * (n > 1)}", speeds, "tok/s")
        waits = await _each(urls, rounds, partial(_first_tokens_per_s, n=n))
        _compare(section, f"{n} stream{'s' * (n > 1)}, first token sooner", waits, "1/s")
    for name, (path, body) in _SHORT.items():
        for n_clients in _CLIENTS:
            ask = partial(requests_per_s, path=path, body=body, n_clients=n_clients, n_requests=_N_REQUESTS)
            speeds = await _each(urls, rounds, ask)
            _compare(section, f"{name}, {n_clients} client{'s' * (n_clients > 1)}", speeds, "req/s")


def _tokens_per_s(url: str, n: int) -> float:
    return _streams(url, n).tokens_per_s(N_PREDICT)


def _first_tokens_per_s(url: str, n: int) -> float:
    return 1 / _streams(url, n).middle_first_s


def _streams(url: str, n: int) -> Streams:
    sampling = {"n_predict": N_PREDICT, "ignore_eos": True, "cache_prompt": False, "speculative.n_max": 0}
    prompts = [[100 + (i * 31 + k * 7) % 200 for k in range(_N_PROMPT)] for i in range(n)]
    return run_streams(
        url, [{"prompt": prompt, "stream": True, "seed": i, **sampling} for i, prompt in enumerate(prompts)]
    )


async def _each(urls: dict[str, str], rounds: int, value: Callable[[str], float]) -> dict[str, float]:
    """Medians by server, asked in turns."""

    async def once(url: str) -> float:
        return value(url)

    return dict(zip(urls, await repeat(rounds, *(partial(once, url) for url in urls.values())), strict=True))


def _compare(section: Section, name: str, values: dict[str, float], unit: str) -> None:
    """A ratio to the first competitor, or our own number where there is none."""
    ours, *theirs = values.values()
    details = {f"{who} {unit}": value for who, value in values.items()}
    if theirs:
        section.at_least(name, ours / theirs[0], 1.0, "x", details)
    else:
        section.report(name, ours, unit)
