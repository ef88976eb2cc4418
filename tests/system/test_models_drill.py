"""Six models of which two fit: all requests are answered but those of clients that leave."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter

import httpx
import pytest

from tests.system.process import START_S, CorralProcess
from tests.tools.tiny_models import llama_bpe

IMPATIENT_S = (0.01, 0.1, 1.0, 3.0)  # how long those clients wait that leave


@pytest.fixture(scope="module")
def six(tmp_path_factory):
    directory = tmp_path_factory.mktemp("six")
    first = llama_bpe(directory)
    for name in "bcdef":
        (directory / f"{name}.gguf").hardlink_to(first)
    first.rename(directory / "a.gguf")
    return directory


class Client:
    """Sends one request after the other, and leaves some before they are answered."""

    def __init__(self, http: httpx.AsyncClient, number: int) -> None:
        self._http = http
        self._rng = random.Random(number)

    async def ask(self, n: int) -> Counter[int | str]:
        return Counter([await self._ask_one() for _ in range(n)])

    async def _ask_one(self) -> int | str:
        rng = self._rng
        message = {"role": "user", "content": "Hello"}
        body = {
            "model": rng.choice("abcdef"),
            "messages": [message],
            "max_tokens": 4,
            "stream": rng.random() < 0.5,
        }
        patience_s = rng.choice(IMPATIENT_S) if rng.random() < 0.1 else START_S
        try:
            asking = self._http.post("/v1/chat/completions", json=body)
            return (await asyncio.wait_for(asking, patience_s)).status_code
        except asyncio.TimeoutError:
            return "left" if patience_s < START_S else "no answer"


@pytest.mark.parametrize(("n_clients", "n_each"), [(12, 6), pytest.param(50, 20, marks=pytest.mark.slow)])
async def test_every_request_is_answered_while_models_come_and_go(six, n_clients, n_each, capsys):
    options = ("--models-max", 2, "-cram", 0, "-c", 256, "--timeout", START_S)
    with CorralProcess("--models-dir", six, *options) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=None, limits=httpx.Limits()) as http:
            clients = [Client(http, i) for i in range(n_clients)]
            answers = sum(await asyncio.gather(*(each.ask(n_each) for each in clients)), Counter())
        began = time.monotonic()
        assert server.stop() == 0
        stop_s = time.monotonic() - began
    n_swaps = sum("to make room for" in line for line in server.lines)
    with capsys.disabled():
        sys.stdout.write(f"\n{dict(answers)}: {n_swaps} unloaded, stopped in {stop_s:.1f} s\n")
    assert answers.keys() <= {200, "left"}
    assert stop_s < START_S / 2, "no request was left for which it had to wait"
    assert "Traceback" not in "".join(server.lines)
