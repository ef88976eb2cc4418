"""Models of a catalog whose engines run in a Ray cluster: one makes room for the other there, too."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.cluster.shape import OPTIONS
from tests.system.fleet_answer import Answer
from tests.system.process import CorralProcess
from tests.tools.tiny_models import llama_bpe, llama_spm
from tests.tools.wait import wait_until

N_ENGINES = 2
GREEDY = {"n_predict": 120, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(nodes, tmp_path_factory):
    directory = tmp_path_factory.mktemp("catalog")
    for write in (llama_bpe, llama_spm):
        write(directory)
    cluster = ["--ray", nodes.address, "--engines", N_ENGINES, "--engine-timeout", 15]
    with CorralProcess("--models-dir", directory, "--models-max", 1, *OPTIONS, *cluster) as server:
        yield server
    wait_until(lambda: not nodes.engines, 0.1)


def states(server: CorralProcess) -> dict[str, str]:
    return {row["id"]: row["status"]["value"] for row in server.get("/models").json()["data"]}


async def finish(answers: list[Answer]) -> list:
    await asyncio.gather(*(answer.task for answer in answers))
    return [answer.said for answer in answers]


async def test_models_take_turns_and_streams_go_on_when_an_engine_is_lost(server, nodes):
    def ask() -> list[Answer]:
        prompts = [f"Story {i} begins" for i in range(4)]
        body = {"model": "llama-bpe", **GREEDY}
        return [Answer(server.url, "/completion", {"prompt": prompt, **body}) for prompt in prompts]

    undisturbed = await finish(ask())
    first = {engine.pid for engine in nodes.engines}
    shown = server.get("/engines?model=llama-bpe").json()["engines"]
    assert {engine["pid"] for engine in shown} == first
    (row,) = (row for row in server.get("/models").json()["data"] if row["id"] == "llama-bpe")
    assert row["memory"]["needed"] == N_ENGINES * 256 << 20, "of this machine"

    answers = ask()
    for answer in answers:
        await answer.reach(10)
    nodes.engines[0].send_signal(signal.SIGKILL)
    assert await finish(answers) == undisturbed

    await asyncio.to_thread(server.complete, prompt="Hello", model="llama-spm", **GREEDY)
    assert states(server) == {"llama-bpe": "unloaded", "llama-spm": "loaded"}
    wait_until(lambda: len(nodes.engines) == N_ENGINES, 0.1)
    assert not first & {engine.pid for engine in nodes.engines}
    assert await finish(ask()) == undisturbed
    assert states(server) == {"llama-bpe": "loaded", "llama-spm": "unloaded"}
