"""How fast a server is: the same requests for every one that speaks llama-server's API."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

from bench.client import Answer, complete, complete_until

N_DECODE = 128
N_PROMPT = 1500
N_LONG = 2000
N_PREFIX = 700
N_TAIL = 20
OFF: dict[str, Any] = {"speculative.n_max": 0}
OPTIONS: dict[str, Any] = {"cache_prompt": False, "ignore_eos": True, "seed": 1}
_LEAD_S = 1.0


def prompt_of(n: int, salt: int = 0) -> list[int]:
    """`n` token ids, the same for every server; another salt shares no prefix."""
    return [1000 + (i * 7919 + salt * 104729) % 30000 for i in range(n)]


async def decode_one(url: str) -> float:
    """Tokens per second behind the first one, without drafts."""
    answer = await complete(url, prompt=prompt_of(16), n_predict=N_DECODE, **OPTIONS, **OFF)
    return (N_DECODE - 1) / answer.decode_s


async def prompt_speed(url: str) -> float:
    """Prompt tokens per second, until the first token is there."""
    answer = await complete(url, prompt=prompt_of(N_PROMPT), n_predict=1, **OPTIONS)
    return N_PROMPT / answer.first_s


async def decode_many(url: str, n_streams: int, n_decode: int = N_DECODE, n_before: int = 16) -> float:
    """Tokens per second of all streams together, over the time in which all of them are running."""
    answers = await asyncio.gather(
        *(
            complete(url, prompt=prompt_of(n_before, i), n_predict=n_decode, **OPTIONS, **OFF)
            for i in range(n_streams)
        )
    )
    start = max(a.times[0] for a in answers)
    end = min(a.times[-2] for a in answers)
    n_events = sum(start < t <= end for a in answers for t in a.times[:-1])
    # A server may hold back a token that ends inside of a letter.
    per_event = n_streams * n_decode / sum(len(a.times) - 1 for a in answers)
    return per_event * n_events / (end - start)


@dataclass(frozen=True, slots=True)
class Stall:
    """A running stream, seen from when a long prompt was sent until its first token was there."""

    times: list[float]
    gaps_ms: list[float]

    @property
    def worst_ms(self) -> float:
        return max(self.gaps_ms)


async def stall(url: str, salt: int = 5, **options: Any) -> Stall:
    """What a long prompt does to a running stream."""
    left = threading.Event()
    running = {"prompt": prompt_of(16), "n_predict": 2500, **OPTIONS, **options}
    stream = asyncio.create_task(complete_until(left, url, **running))
    try:
        await asyncio.sleep(_LEAD_S)
        long = await complete(url, prompt=prompt_of(N_LONG, salt), n_predict=1, **OPTIONS)
    finally:
        left.set()
    answer = await stream
    assert answer.times[-1] > long.times[0], "the stream ended before the prompt was through"
    pairs = [(a, b) for a, b in zip(answer.times, answer.times[1:], strict=False) if long.sent_at < b]
    return Stall([b - long.sent_at for _, b in pairs], [1e3 * (b - a) for a, b in pairs])


async def worst_gap_ms(url: str) -> float:
    """The longest pause of a running stream while a long prompt comes in."""
    return (await stall(url, **OFF)).worst_ms


async def share_prefix(url: str, n_clients: int, salt: int, n_predict: int = 4) -> list[Answer]:
    """Clients that come together, with the beginning of their prompts in common and nothing cached."""
    prefix = prompt_of(N_PREFIX, salt)
    options = {**OPTIONS, "cache_prompt": True, "n_predict": n_predict}
    return await asyncio.gather(
        *(complete(url, prompt=prefix + prompt_of(N_TAIL, salt + 1 + i), **options) for i in range(n_clients))
    )


async def shared_prefix(url: str, n_clients: int) -> float:
    """Prompt tokens evaluated for clients that share a prefix, per token of one prefix and all tails."""
    answers = await share_prefix(url, n_clients, 9)
    n_evaluated = sum(a.last["timings"]["prompt_n"] for a in answers)
    return float(n_evaluated / (N_PREFIX + n_clients * N_TAIL))
