"""Engines in a Ray cluster: the same answers as on this machine, also when a process or a node is lost."""

from __future__ import annotations

import signal

import psutil
import pytest

from tests.cluster.shape import N_SLOTS, OPTIONS
from tests.system.drill import ask, finish
from tests.system.fleet_answer import Answer
from tests.system.fleet_drain import drain_while_streaming
from tests.system.process import CorralProcess, run_corral
from tests.tools.wait import wait_until

N_ENGINES = 3


@pytest.fixture(scope="module")
def server(nodes, tiny, tmp_path_factory):
    files = ["--slot-save-path", tmp_path_factory.mktemp("states")]
    cluster = ["--ray", nodes.address, "--engines", N_ENGINES, "--engine-timeout", 15]
    with CorralProcess("-m", tiny, *OPTIONS, *cluster, *files) as server:
        yield server
    wait_until(lambda: not nodes.engines, 0.1)


async def reach(answers: list[Answer], n: int) -> None:
    for answer in answers:
        await answer.reach(n)


def wait_whole(server, nodes) -> list[psutil.Process]:
    """Wait until all engines are ready."""

    def is_whole() -> bool:
        states = [engine["state"] for engine in server.get("/engines").json()["engines"]]
        return states == ["ready"] * N_ENGINES == ["ready"] * len(nodes.engines)

    wait_until(is_whole, 0.1)
    return nodes.engines


async def test_answers_are_those_of_a_local_server(server, local):
    assert server.get("/props").json()["total_slots"] == N_ENGINES * N_SLOTS
    assert await finish(ask(server)) == local


@pytest.mark.parametrize(
    ("victim", "number"),
    [("engines", signal.SIGKILL), ("hosts", signal.SIGKILL), ("engines", signal.SIGSTOP)],
    ids=["engine killed", "actor killed", "engine stopped"],
)
async def test_answers_do_not_change_when_a_process_is_lost(server, nodes, local, victim, number):
    wait_whole(server, nodes)
    process = getattr(nodes, victim)[0]
    answers = ask(server)
    await reach(answers, 10)
    process.send_signal(number)
    assert await finish(answers) == local
    wait_until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, 0.1)


async def test_a_replaced_engine_hands_its_streams_over(server, nodes):
    before = {engine.pid for engine in wait_whole(server, nodes)}
    await drain_while_streaming(server, N_ENGINES, N_SLOTS)
    assert len(before & {engine.pid for engine in wait_whole(server, nodes)}) == N_ENGINES - 1


def test_states_travel(server, nodes):
    wait_whole(server, nodes)
    prompt = "This is a document. " * 40
    last = N_ENGINES * N_SLOTS - 1
    first = server.complete(prompt=prompt, n_predict=8, temperature=0, id_slot=last)
    saved = server.post(f"/slots/{last}?action=save", filename="state").json()
    restored = server.post("/slots/1?action=restore", filename="state").json()
    assert restored["n_restored"] == saved["n_saved"] > 40
    forked = server.post(f"/slots/{last}?action=fork&slot={N_SLOTS}")
    assert forked.is_success, forked.text
    assert forked.json()["id_slot"] == N_SLOTS
    for slot in (1, N_SLOTS):
        again = server.complete(prompt=prompt, n_predict=8, temperature=0, id_slot=slot)
        assert again["content"] == first["content"]
        assert again["timings"]["cache_n"] > 5 * again["timings"]["prompt_n"]


def test_status_shows_nodes_and_engines(server, nodes, tiny):
    engines = wait_whole(server, nodes)
    status = run_corral("cluster", "status", nodes.address)
    assert status.returncode == 0, status.stderr
    lines = [line.split() for line in status.stdout.splitlines()]
    assert sum(line[0] == "127.0.0.1" for line in lines) == 3
    shown = {int(line[1]) for line in lines if line[-1] == str(tiny)}
    assert shown == {engine.pid for engine in engines}


async def test_answers_do_not_change_when_a_node_is_lost(server, nodes, local):
    wait_whole(server, nodes)
    answers = ask(server)
    await reach(answers, 10)
    with nodes.one_less():
        assert await finish(answers) == local
        wait_until(lambda: len(nodes.engines) == N_ENGINES - 1, 0.1)
        assert server.get("/health").json()["status"] == "ok"
