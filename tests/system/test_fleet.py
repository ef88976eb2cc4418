"""Three engines of one model: streams go on where they were when engines die or hang, and prompts go where
their beginning is cached."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Any

import httpx
import psutil
import pytest

from tests.system.drill import ask, finish
from tests.system.fleet_answer import Answer
from tests.system.fleet_drain import drain_while_streaming
from tests.system.process import START_S, CorralProcess, wait_until

N_ENGINES, N_SLOTS = 3, 6
DOCUMENTS = [f"This is document {i}. " + f"The word {i} stands here. " * 40 for i in range(N_ENGINES)]


@pytest.fixture(scope="module")
def server(tiny):
    options = ["-c", 1024 * N_SLOTS, "-np", N_SLOTS, "--engines", N_ENGINES, "--engine-timeout", 2]
    with CorralProcess("-m", tiny, *options, "-t", 1, "--batch-exact", "--slots", "--metrics") as server:
        yield server


@pytest.fixture(autouse=True)
def all_engines(server):
    """Every test begins with three engines that work."""
    wait_until(lambda: {each["state"] for each in server.get("/engines").json()["engines"]} == {"ready"})


@pytest.fixture(scope="module")
def undisturbed(server):
    async def run() -> list[Any]:
        return await finish(ask(server))

    return asyncio.run(run())


@pytest.mark.parametrize(
    "faults",
    [(signal.SIGKILL, signal.SIGKILL), (signal.SIGSTOP, signal.SIGKILL)],
    ids=["killed", "stopped"],
)
async def test_twelve_answers_do_not_change_when_engines_are_lost(server, undisturbed, faults):
    answers = ask(server)
    for n, number in ((10, faults[0]), (60, faults[1])):
        for answer in answers:
            await answer.reach(n)
        server.engines[0].send_signal(number)
    assert await finish(answers) == undisturbed
    assert server.get("/health").json()["status"] == "ok"


async def test_answers_do_not_change_when_engines_are_replaced(server, undisturbed):
    before = {engine.pid for engine in server.engines}
    n_restarts = [engine["n_restarts"] for engine in server.get("/engines").json()["engines"]]
    answers = ask(server)
    for answer in answers:
        await answer.reach(5)
    async with httpx.AsyncClient(timeout=START_S, base_url=server.url, verify=False) as http:
        for engine in range(N_ENGINES):
            response = await http.post(f"/engines/{engine}/drain")
            assert response.json() == {"success": True}
    assert await finish(answers) == undisturbed
    engines = server.get("/engines").json()["engines"]
    assert not before & {engine["pid"] for engine in engines}
    assert [engine["n_restarts"] for engine in engines] == n_restarts
    assert server.post(f"/engines/{N_ENGINES}/drain").status_code == 404
    assert server.post("/engines/x/drain").status_code == 404


async def test_a_stream_takes_its_state_along_when_its_engine_is_replaced(server):
    await drain_while_streaming(server, N_ENGINES, N_SLOTS)


async def test_interrupted_answers_do_not_wait_for_a_new_engine(server):
    """The new one is stopped before it can do anything."""
    body = {"n_predict": 900, "ignore_eos": True}
    prompts = [f"{i} times" for i in range(2 * N_ENGINES)]
    answers = [Answer(server.url, "/completion", {"prompt": prompt, **body}) for prompt in prompts]
    for answer in answers:
        await answer.reach(5)
    assert {answer.events[0]["id_slot"] // N_SLOTS for answer in answers} == set(range(N_ENGINES))
    before = server.engines
    before[0].send_signal(signal.SIGKILL)
    while not (new := [engine for engine in server.engines if engine not in before]):
        await asyncio.sleep(0.01)
    new[0].send_signal(signal.SIGSTOP)
    await asyncio.gather(*(answer.task for answer in answers))
    assert [answer.said[3] for answer in answers] == [900] * len(answers)
    with contextlib.suppress(psutil.NoSuchProcess):  # nor does the server wait for it
        new[0].send_signal(signal.SIGCONT)


def test_prompts_go_where_their_beginning_is(server):
    for engine, document in enumerate(DOCUMENTS):
        server.complete(prompt=document, n_predict=1, id_slot=engine * N_SLOTS)
    for engine, document in enumerate(DOCUMENTS):
        again = server.complete(prompt=document + "And then?", n_predict=1)
        assert again["id_slot"] // N_SLOTS == engine
        timings = again["timings"]
        assert timings["cache_n"] > 5 * timings["prompt_n"] > 0


def test_slots_of_all_engines_can_be_used(server):
    assert [slot["id"] for slot in server.get("/slots").json()] == list(range(N_ENGINES * N_SLOTS))
    assert server.get("/props").json()["total_slots"] == N_ENGINES * N_SLOTS
    last = N_ENGINES * N_SLOTS - 1
    answer = server.complete(prompt=DOCUMENTS[0], n_predict=1, id_slot=last)
    assert answer["id_slot"] == last
    forked = server.post(f"/slots/{last}?action=fork&slot=1").json()
    assert (forked["id_slot"], forked["id_source"]) == (1, last)
    assert forked["n_tokens"] > 0
    again = server.complete(prompt=DOCUMENTS[0], n_predict=1, id_slot=1)
    assert again["timings"]["cache_n"] > 5 * again["timings"]["prompt_n"]
    assert server.post(f"/slots/{last + 1}?action=tokens").status_code == 404


def test_metrics_count_all_engines(server):
    text = server.get("/metrics").text
    slots = [line for line in text.splitlines() if line.startswith("corral_slots{")]
    assert sum(float(line.split()[-1]) for line in slots) == N_ENGINES * N_SLOTS
