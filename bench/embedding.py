"""How fast texts become vectors: many in one request, one at a time, from many clients."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import closing
from functools import partial
from pathlib import Path

from openai import OpenAI

from bench.client import exchange
from bench.process import Corral, RawLoop
from bench.section import Section, repeat
from bench.setup import AS_GIVEN, Setup
from tests.tools.minilm import minilm
from tests.tools.quantize import to_q8_0

N_TEXTS = 256
N_CLIENTS = 8
_PROSE = """river house old song window green engine winter paper bread small road light stone garden letter
ship morning the of a in and with under behind quiet market train field king answer cold water story"""
_random = random.Random(1)
TEXTS = [" ".join(_random.choices(_PROSE.split(), k=_random.randint(2, 6))) for _ in range(N_TEXTS)]


async def measure_embedding(setup: Setup, section: Section) -> None:
    """A model of its own, with a server and a yardstick of its own."""
    model = embedding_model()
    with closing(RawLoop("bench.raw_embedding", model)) as raw, closing(Corral(model, *AS_GIVEN)) as corral:

        async def packed_loop() -> float:
            return N_TEXTS / raw.measure("packed", texts=TEXTS)

        speeds = (request_speed, one_by_one_speed, clients_speed)
        loop, request, one_by_one, clients = await repeat(
            setup.rounds, packed_loop, *(partial(speed, corral.url) for speed in speeds)
        )
    name, details = f"{N_TEXTS} texts embedded in one request", {"texts/s": request}
    others = f"{N_CLIENTS} clients with {N_TEXTS // N_CLIENTS} texts each"
    section.at_least(f"{name} over a packed loop", request / loop, 0.95, "x raw", {"raw": loop, **details})
    section.at_least(f"{name} over one each", request / one_by_one, 3, "x", {"one": one_by_one, **details})
    section.at_least(f"{others} over one with all", clients / request, 0.9, "x", {"each": clients, **details})


def embedding_model() -> str:
    """all-MiniLM-L6-v2, as it would be served from a CPU."""
    out = Path(__file__).parent / "out"
    return str(to_q8_0(minilm(out), out / "all-minilm-l6-v2-q8_0.gguf"))


async def request_speed(url: str) -> float:
    """Texts per second, all in one request."""
    return N_TEXTS / await _seconds(url, [TEXTS])


async def clients_speed(url: str) -> float:
    """Texts per second, from clients that ask at the same time."""
    n = N_TEXTS // N_CLIENTS
    return N_TEXTS / await _seconds(url, [TEXTS[at : at + n] for at in range(0, N_TEXTS, n)])


async def one_by_one_speed(url: str) -> float:
    """Texts per second, one after the other, as `openai` asks for them."""
    return N_TEXTS / await asyncio.to_thread(_one_by_one, url)


async def _seconds(url: str, requests: list[list[str]]) -> float:
    answers = await asyncio.gather(*(exchange(url, "/v1/embeddings", {"input": texts}) for texts in requests))
    for _, parts in answers:
        assert b" 200 " in parts[0][1].split(b"\r\n", 1)[0], parts[0][1]
    return max(parts[-1][0] for _, parts in answers) - min(sent_at for sent_at, _ in answers)


def _one_by_one(url: str) -> float:
    with OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        started = time.perf_counter()
        for text in TEXTS:
            client.embeddings.create(model="", input=text)
        return time.perf_counter() - started
