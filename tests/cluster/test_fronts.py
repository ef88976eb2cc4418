"""Several fronts that share the engines of a Ray cluster: the same answers, also when a process is lost."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from dataclasses import dataclass

import httpx
import psutil
import pytest

from tests.cluster.shape import N_SLOTS, OPTIONS
from tests.system.drill import ask, finish
from tests.system.fleet_answer import Answer
from tests.system.process import START_S, CorralProcess, children, run_corral
from tests.tools.wait import wait_until

N_FRONTS, N_ENGINES = 2, 2


@dataclass(frozen=True)
class Front:
    url: str

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def process(self, nodes) -> psutil.Process | None:
        """Its server, if it listens."""
        for process in nodes.fronts:
            with contextlib.suppress(psutil.Error):
                found = process.net_connections("inet")
                if any((each.laddr.port, each.status) == (self.port, psutil.CONN_LISTEN) for each in found):
                    return process
        return None

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=START_S)

    @property
    def is_whole(self) -> bool:
        """Whether it answers, and has all engines."""
        with contextlib.suppress(httpx.TransportError):
            if self.get("/health").is_success:
                engines = self.get("/engines").json()["engines"]
                return [engine["state"] for engine in engines] == ["ready"] * N_ENGINES
        return False


@pytest.fixture(scope="module")
def fronts(nodes, tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    stores = ("--slot-save-path", "--responses", "--shared-storage")
    storage = [part for option in stores for part in (option, folder)]
    cluster = ["--ray", nodes.address, "--engines", N_ENGINES, "--fronts", N_FRONTS, "--engine-timeout", 15]
    with CorralProcess("-m", tiny, *OPTIONS, *cluster, *storage, wait=False) as command:
        urls = command.wait_for(r"all \d+ fronts are ready: (.*)").split()
        assert len(set(urls)) == N_FRONTS
        yield [Front(url) for url in urls]
        assert command.stop() == 0, command.lines
    wait_until(lambda: not (nodes.engines or nodes.fronts), 0.1)
    status = run_corral("cluster", "status", nodes.address)
    assert not re.search(rf"\(front\)|{tiny}", status.stdout), "no actor is left"


@pytest.fixture(autouse=True)
def whole(fronts, nodes):
    wait_until(lambda: all(front.is_whole for front in fronts) and len(nodes.engines) == N_ENGINES, 0.1)


def node_of(front: psutil.Process) -> int:
    """Return the process of a front's node, which is the parent of its actor."""
    return front.parent().ppid()


async def begin(front: Front) -> list[Answer]:
    answers = ask(front)
    for answer in answers[:N_SLOTS]:
        await answer.reach(5)
    return answers


async def test_answers_through_both_are_those_of_one_server(fronts, local):
    one, other = [ask(front) for front in fronts]
    assert await finish(one) == local
    assert await finish(other) == local


def test_what_one_front_has_is_found_through_the_other(fronts):
    one, other = (front.url for front in fronts)
    asked = {"input": "hello", "max_output_tokens": 4}
    stored = httpx.post(f"{one}/v1/responses", json=asked, timeout=START_S).json()["id"]
    assert httpx.get(f"{other}/v1/responses/{stored}", timeout=START_S).json()["id"] == stored
    body = {"prompt": "a", "stream": True, "n_predict": -1, "ignore_eos": True}
    headers = {"X-Conversation-Id": "talk"}
    with httpx.stream("POST", f"{one}/completion", json=body, headers=headers, timeout=START_S) as stream:
        parts = stream.iter_raw()
        next(parts)
        stopped = httpx.delete(f"{other}/v1/stream", params={"conv_id": "talk"}, timeout=START_S)
        assert stopped.status_code == 204
        for _ in parts:
            pass  # it ends


def test_fronts_share_engines_and_are_on_different_nodes(fronts, nodes):
    assert len(nodes.engines) == N_ENGINES
    assert all(front.get("/props").json()["total_slots"] == N_ENGINES * N_SLOTS for front in fronts)
    assert len({node_of(process) for process in nodes.fronts}) == N_FRONTS
    response = httpx.post(f"{fronts[0].url}/engines/0/drain", timeout=START_S)
    assert response.status_code == 501, "the engine is the other front's, too"


@pytest.mark.parametrize("victim", ["server", "actor"])
async def test_a_front_that_is_killed_comes_back_and_others_go_on(fronts, nodes, local, victim):
    lost, other = fronts
    server = lost.process(nodes)
    node = node_of(server)
    broken, answers = await asyncio.gather(begin(lost), begin(other))
    (server if victim == "server" else server.parent()).kill()
    assert await finish(answers) == local
    outcomes = await asyncio.gather(*(answer.task for answer in broken), return_exceptions=True)
    assert all(outcome is None or isinstance(outcome, httpx.TransportError) for outcome in outcomes)
    wait_until(lambda: lost.is_whole, 0.1)
    assert lost.process(nodes).pid != server.pid
    assert node_of(lost.process(nodes)) == node
    assert await finish(ask(lost)) == local


def bridge_of(front: Front, nodes) -> psutil.Process:
    return children(front.process(nodes).pid, "corral.cluster.bridge")[0]


@pytest.mark.parametrize(
    ("find", "number"),
    [
        (lambda _, nodes: nodes.engines[0], signal.SIGKILL),
        (lambda _, nodes: nodes.engines[0], signal.SIGSTOP),
        (lambda _, nodes: nodes.hosts[0], signal.SIGKILL),
        (lambda fronts, nodes: bridge_of(fronts[0], nodes), signal.SIGKILL),
    ],
    ids=["engine killed", "engine stopped", "actor killed", "bridge killed"],
)
async def test_answers_of_all_fronts_go_on_when_an_engine_is_lost(fronts, nodes, local, find, number):
    lost = find(fronts, nodes)
    all = await asyncio.gather(*map(begin, fronts))
    lost.send_signal(number)
    for answers in all:
        assert await finish(answers) == local
    wait_until(lambda: not lost.is_running() or lost.status() == psutil.STATUS_ZOMBIE, 0.1)
