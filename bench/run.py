"""`make bench`: what the server costs over plain libllama, as ratios within one run.

Rounds of the raw loop and of the server alternate; medians are compared. `--against NAME=URL` measures any
llama-server-compatible server the same way and prints it beside.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from bench import media
from bench.chat import chat_preparation_ms, chat_stream, completed_stream
from bench.client import Answer, complete, get
from bench.embedding import (
    N_CLIENTS,
    N_TEXTS,
    TEXTS,
    clients_speed,
    embedding_model,
    one_by_one_speed,
    request_speed,
)
from bench.process import Corral, RawLoop
from bench.speculative import OFF, edit_speed, fast_model, story_speed
from bench.state import N_TOKENS, restore_speedup
from bench.structured import bound_speed, free_speed, tokens_per_step
from corral.cli.default_model import find_default_model

N_SEQ = 8
N_CTX = 3072 * N_SEQ
N_DECODE = 128
N_PROMPT = 1500
N_LONG = 2000
N_PREFIX = 700
MAX_ITL_MS = 200
OPTIONS = {"cache_prompt": False, "ignore_eos": True, "seed": 1, **OFF}


def prompt_of(n: int, salt: int = 0) -> list[int]:
    """`n` token ids, the same for every server; another salt shares no prefix."""
    return [1000 + (i * 7919 + salt * 104729) % 30000 for i in range(n)]


async def decode_one(url: str) -> float:
    answer = await complete(url, prompt=prompt_of(16), n_predict=N_DECODE, **OPTIONS)
    return (N_DECODE - 1) / answer.decode_s


async def prompt_speed(url: str) -> float:
    answer = await complete(url, prompt=prompt_of(N_PROMPT), n_predict=1, **OPTIONS)
    return N_PROMPT / answer.first_s


async def decode_many(url: str) -> float:
    """Tokens per second of all streams together, over the time in which all of them are running."""
    answers = await asyncio.gather(
        *(complete(url, prompt=prompt_of(16, i), n_predict=N_DECODE, **OPTIONS) for i in range(N_SEQ))
    )
    start = max(a.times[0] for a in answers)
    end = min(a.times[-2] for a in answers)
    return sum(start < t <= end for a in answers for t in a.times[:-1]) / (end - start)


async def worst_gap_ms(url: str) -> float:
    """The longest pause of a running stream while a long prompt comes in."""
    stream = asyncio.create_task(complete(url, prompt=prompt_of(16), n_predict=700, **OPTIONS))
    await asyncio.sleep(1.0)
    long = await complete(url, prompt=prompt_of(N_LONG, 5), n_predict=1, **OPTIONS)
    answer = await stream
    during = [b - a for a, b in zip(answer.times, answer.times[1:], strict=False) if long.sent_at < b]
    assert answer.times[-1] > long.times[0], "the stream ended before the prompt was through"
    return 1e3 * max(during)


async def shared_prefix(url: str) -> float:
    """Prompt tokens evaluated for clients that share a prefix, per token of one prefix and all tails."""
    prefix, n_tail = prompt_of(N_PREFIX, 9), 20
    options = {**OPTIONS, "cache_prompt": True, "n_predict": 4}
    answers: list[Answer] = await asyncio.gather(
        *(complete(url, prompt=prefix + prompt_of(n_tail, 20 + i), **options) for i in range(N_SEQ))
    )
    n_evaluated = sum(a.last["timings"]["prompt_n"] for a in answers)
    return float(n_evaluated / (N_PREFIX + N_SEQ * n_tail))


async def repeat(rounds: int, *measures: Callable[[], Awaitable[float]]) -> list[float]:
    """Medians of measures that take turns."""
    results = [[await measure() for measure in measures] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*results, strict=True)]


def row(
    name: str,
    corral: float,
    target: float,
    is_upper: bool,
    unit: str,
    others: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, object]:
    ok = corral <= target if is_upper else corral >= target
    beside = "".join(f"   {n} {v:.3g}" for n, v in others.items())
    verdict, sign = "ok  " if ok else "MISS", "<=" if is_upper else ">="
    print(f"{verdict}  {name:<52} {corral:8.3f} {unit:<6} {sign} {target}{beside}", flush=True)
    return {"name": name, "corral": corral, "target": target, "ok": ok, **others}


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", default=str(find_default_model()))
    parser.add_argument("-fa", "--flash-attn", default="off", choices=("on", "off"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", action="append", default=[], metavar="NAME=URL")
    options = parser.parse_args()
    rivals = dict(item.split("=", 1) for item in options.against)
    flash = options.flash_attn
    shape = ("-c", N_CTX, "-np", N_SEQ, "--max-itl-ms", MAX_ITL_MS, "-fa", flash)
    raw = RawLoop("bench.raw", options.model, N_CTX, N_SEQ, flash)
    corral = Corral(options.model, *shape)
    try:
        rows = await measure_all(raw, corral, rivals, options.rounds)
    finally:
        corral.close()
        raw.close()
    rows += await speculative_rows(options.model, options.rounds)
    rows += await embedding_rows(options.rounds)
    rows += await media_rows(options.model)
    out = Path(__file__).parent / "out"
    out.mkdir(exist_ok=True)
    (out / "bench.json").write_text(json.dumps(rows, indent=1))
    return 0 if all(r["ok"] for r in rows) else 1


async def measure_all(
    raw: RawLoop, corral: Corral, rivals: dict[str, str], rounds: int
) -> list[dict[str, object]]:
    async def raw_decode(n_streams: int) -> float:
        seconds = raw.measure("decode", prompt=prompt_of(16), n_predict=N_DECODE, n_streams=n_streams)
        return n_streams * (N_DECODE - 1) / seconds

    async def raw_prompt() -> float:
        return N_PROMPT / raw.measure("prompt", prompt=prompt_of(N_PROMPT))

    async def ours_completed() -> float:
        return await completed_stream(corral.url)

    async def ours_free() -> float:
        return await free_speed(corral.url)

    async def compare(
        name: str,
        base: Callable[[], Awaitable[float]],
        speed: Callable[[str], Awaitable[float]],
        target: float,
    ) -> dict[str, object]:
        measures = [base, *((lambda url=url: speed(url)) for url in (corral.url, *rivals.values()))]
        reference, ours, *theirs = await repeat(rounds, *measures)
        others = {"raw tok/s": reference, "corral tok/s": ours, **dict(zip(rivals, theirs, strict=True))}
        return row(name, ours / reference, target, False, "x raw", others)

    async def absolute(
        name: str, value: Callable[[str], Awaitable[float]], target: float, unit: str
    ) -> dict[str, object]:
        measures = [(lambda url=url: value(url)) for url in (corral.url, *rivals.values())]
        ours, *theirs = await repeat(1, *measures)
        return row(name, ours, target, True, unit, dict(zip(rivals, theirs, strict=True)))

    for url in rivals.values():
        assert (await get(url, "/health"))[0] == 200, f"{url} does not answer"
    return [
        await compare("one stream, decode", lambda: raw_decode(1), decode_one, 0.95),
        await compare(f"prompt of {N_PROMPT} tokens", raw_prompt, prompt_speed, 0.97),
        await compare(f"{N_SEQ} streams together", lambda: raw_decode(N_SEQ), decode_many, 0.93),
        await absolute(f"worst gap while {N_LONG} prompt tokens arrive", worst_gap_ms, 2 * MAX_ITL_MS, "ms"),
        await absolute(f"prompt tokens, {N_SEQ} clients share {N_PREFIX}", shared_prefix, 1.1, "x one"),
        await compare("chat stream over /completion stream", ours_completed, chat_stream, 0.97),
        await compare("a stream in a grammar over a free one", ours_free, bound_speed, 0.95),
        row("tokens for each step, a person as JSON", await tokens_per_step(corral.url), 1.5, False, "x"),
        row("200 messages and 20 tools to a prompt", await chat_preparation_ms(corral.url), 20, True, "ms"),
        *await state_rows(corral.url),
        row("memory of the front process", corral.front_mb, 150, True, "MB"),
    ]


async def state_rows(url: str) -> list[dict[str, object]]:
    session = await restore_speedup(url, "/sessions/1?action=ACTION&slot=0")
    file = await restore_speedup(url, "/slots/0?action=ACTION", {"filename": "bench"})
    return [
        row(f"{N_TOKENS} tokens from a session over evaluating them", session, 20, False, "x"),
        row(f"{N_TOKENS} tokens from a file over evaluating them", file, 20, False, "x"),
    ]


async def media_rows(model: str) -> list[dict[str, object]]:
    path, n_picture = media.projector(model)
    corral = Corral(model, "-c", 4096, "-np", 2, "--max-itl-ms", MAX_ITL_MS, "--mmproj", path)
    try:
        n_again, speedup = await media.second_turn(corral.url, n_picture)
        gap = await media.worst_gap_ms(corral.url)
    finally:
        corral.close()
    return [
        row(f"of {n_picture} tokens of an image, evaluated in a 2nd turn", n_again, 0, True, "tokens"),
        row("a first turn with an image over the second, prompt", speedup, 2, False, "x"),
        row("worst gap while two images are encoded", gap, 2 * MAX_ITL_MS, True, "ms"),
    ]


async def speculative_rows(model: str, rounds: int) -> list[dict[str, object]]:
    """With drafts over without: in an encoding for which this CPU gains from batches, and as it is given."""
    fast = fast_model(model)
    servers: tuple[tuple[str, str, float, tuple[str, ...]], ...] = (
        ("Q4_0", fast, 1.6, ()),
        ("Q4_0, inexact", fast, 1.6, ("--no-draft-exact",)),
        ("as given", model, 1.0, ()),
    )
    rows: list[dict[str, object]] = []
    for name, path, least, options in servers:
        corral = Corral(path, "-c", 4096, *options)
        try:
            for text, speed, target in (("an edit", edit_speed, least), ("a story", story_speed, 0.98)):
                drafts, plain = await repeat(
                    rounds, partial(speed, corral.url), partial(speed, corral.url, **OFF)
                )
                beside = {"tok/s": drafts, "plain": plain}
                rows.append(row(f"{text} with drafts, {name}", drafts / plain, target, False, "x", beside))
        finally:
            corral.close()
    return rows


async def embedding_rows(rounds: int) -> list[dict[str, object]]:
    """A model of its own, with a server and a yardstick of its own."""
    model = embedding_model()
    raw, corral = RawLoop("bench.raw_embedding", model), Corral(model)

    async def packed_loop() -> float:
        return N_TEXTS / raw.measure("packed", texts=TEXTS)

    speeds = (request_speed, one_by_one_speed, clients_speed)
    try:
        loop, request, one_by_one, clients = await repeat(
            rounds, packed_loop, *(partial(speed, corral.url) for speed in speeds)
        )
    finally:
        corral.close()
        raw.close()
    name, beside = f"{N_TEXTS} texts embedded in one request", {"texts/s": request}
    others = f"{N_CLIENTS} clients with {N_TEXTS // N_CLIENTS} texts each"
    return [
        row(f"{name} over a packed loop", request / loop, 0.95, False, "x raw", {"raw": loop, **beside}),
        row(f"{name} over one each", request / one_by_one, 3, False, "x", {"one": one_by_one, **beside}),
        row(f"{others} over one with all", clients / request, 0.9, False, "x", {"each": clients, **beside}),
    ]


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
