"""What the server costs over plain libllama: one stream, a prompt, what a prompt does to others, memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import closing

from bench.process import RawLoop
from bench.section import Section, repeat
from bench.setup import MAX_ITL_MS, N_SEQ, Setup
from bench.speed import (
    N_DECODE,
    N_LONG,
    N_PREFIX,
    N_PROMPT,
    decode_many,
    decode_one,
    prompt_of,
    prompt_speed,
    shared_prefix,
    worst_gap_ms,
)


def raw_decode(raw: RawLoop, n_streams: int, n_decode: int = N_DECODE) -> float:
    """Tokens per second of all streams together."""
    seconds = raw.measure("decode", prompt=prompt_of(16), n_predict=n_decode, n_streams=n_streams)
    return n_streams * (n_decode - 1) / seconds


async def measure_overhead(setup: Setup, section: Section) -> None:
    with closing(setup.raw()) as raw, closing(setup.corral()) as corral:

        async def raw_stream() -> float:
            return raw_decode(raw, 1)

        async def raw_prompt() -> float:
            return N_PROMPT / raw.measure("prompt", prompt=prompt_of(N_PROMPT))

        async def compare(
            name: str,
            base: Callable[[], Awaitable[float]],
            speed: Callable[[str], Awaitable[float]],
            target: float,
        ) -> None:
            reference, ours = await repeat(setup.rounds, base, lambda: speed(corral.url))
            details = {"raw tok/s": reference, "corral tok/s": ours}
            section.at_least(name, ours / reference, target, "x raw", details)

        await compare("one stream, decode", raw_stream, decode_one, 0.95)
        await compare(f"prompt of {N_PROMPT} tokens", raw_prompt, prompt_speed, 0.97)


async def measure_sharing(setup: Setup, section: Section) -> None:
    with closing(setup.corral()) as corral:
        gap = await worst_gap_ms(corral.url)
        section.at_most(f"worst gap while {N_LONG} prompt tokens arrive", gap, 2 * MAX_ITL_MS, "ms")
        evaluated = await shared_prefix(corral.url, N_SEQ)
        section.at_most(f"prompt tokens, {N_SEQ} clients share {N_PREFIX}", evaluated, 1.1, "x one")


async def measure_memory(setup: Setup, section: Section) -> None:
    """After the same work on both sides."""
    with closing(setup.raw()) as raw, closing(setup.corral()) as corral:
        raw_decode(raw, N_SEQ, 32)
        raw.measure("prompt", prompt=prompt_of(N_PROMPT))
        await decode_many(corral.url, N_SEQ, 32)
        await prompt_speed(corral.url)
        section.at_most("memory of the front process", corral.mb, 150, "MB")
        details = {"engine MB": corral.engine_mb, "raw MB": raw.mb}
        section.report("memory of the engine process", corral.engine_mb / raw.mb, "x raw", details)
