"""docs/howto/cluster.md, followed word by word on three machines, and what can be lost there."""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.cluster import machine
from tests.cluster.machine import Machine
from tests.system.process import START_S, Stream
from tests.tools.tiny_models import llama_bpe
from tests.tools.wait import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "cluster.md"
N_ENGINES = 3
QUESTION = {
    "prompt": "hello world",
    "n_predict": 200,
    "temperature": 0,
    "ignore_eos": True,
    "return_tokens": True,
}

pytestmark = pytest.mark.skipif(bool(machine.why_not()), reason=machine.why_not())


def from_page(beginning: str) -> str:
    """Return the command of the page that begins like this."""
    block = PAGE.read_text().split("```sh\n")[1].split("```")[0]
    commands = [line.split("  #")[0].strip() for line in block.splitlines()]
    (command,) = [each for each in commands if each.startswith(beginning)]
    return command


class Cluster:
    """Three machines; the second one has the front."""

    def __init__(self, machines: list[Machine]) -> None:
        self.head, self.second, self.third = self.machines = machines
        self.head.run(from_page("corral cluster up --host"))
        self.token = self.head.run("cat ~/.ray/auth_token")
        for each in (self.second, self.third):
            self.join(each)
        command = f"{from_page('corral --ray')} -t 1 --batch-exact"  # the machines share their CPUs
        self._server = self.second.popen(command)
        self.lines: list[str] = []
        assert self._server.stdout is not None
        for line in self._server.stdout:
            self.lines.append(line)
            if found := re.search(r"ready on http://127\.0\.0\.1:(\d+)", line):
                break
        assert found, "".join(self.lines)
        self.url = self.second.url_of(int(found[1]))

    def give_token(self, to: Machine) -> None:
        to.run(f"mkdir -p ~/.ray && umask 077 && printf %s {self.token} > ~/.ray/auth_token")

    def join(self, joining: Machine) -> None:
        self.give_token(joining)
        joining.run(from_page("corral cluster up --join"))

    def rejoin(self, joining: Machine) -> None:
        joining.run(from_page("corral cluster down"))
        joining.run(from_page("corral cluster up --join"))

    @property
    def engines(self) -> list[psutil.Process]:
        return [process for each in self.machines for process in each.processes("corral.link.worker")]

    @property
    def states(self) -> list[str]:
        found = httpx.get(f"{self.url}/engines", timeout=START_S).json()["engines"]
        return [engine["state"] for engine in found]

    def wait_whole(self) -> None:
        wait_until(lambda: self.states == ["ready"] * N_ENGINES, 0.2)

    def bring_engine_to(self, machine: Machine) -> None:
        """Ray starts the next engine on any node that has room: lose others until one is on this machine."""
        self.wait_whole()
        while not machine.processes("corral.link.worker"):
            most = max(self.machines, key=lambda each: len(each.processes("corral.link.worker")))
            most.processes("corral.link.worker")[0].kill()
            wait_until(lambda: self.states != ["ready"] * N_ENGINES, 0.05)
            self.wait_whole()

    def is_healthy(self) -> bool:
        return httpx.get(f"{self.url}/health", timeout=START_S).status_code == 200

    def close(self) -> None:
        self._server.kill()
        assert self._server.stdout is not None
        self._server.stdout.close()
        self._server.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    models = tmp_path_factory.mktemp("models")
    shutil.move(llama_bpe(models), models / "model.gguf")
    with machine.made(3, models) as machines:
        cluster = Cluster(machines)
        yield cluster
        cluster.close()


@pytest.fixture(scope="module")
def answer(cluster) -> list[int]:
    response = httpx.post(f"{cluster.url}/completion", json=QUESTION, timeout=START_S)
    return response.json()["tokens"]


async def streaming(cluster: Cluster) -> list[Stream]:
    cluster.wait_whole()
    streams = [Stream(cluster.url, **QUESTION) for _ in range(2 * N_ENGINES)]
    for stream in streams:
        await stream.reach(5)
    return streams


async def check(streams: list[Stream], answer: list[int]) -> None:
    for stream in streams:
        await stream.task
        assert stream.tokens == answer


def test_status_shows_machines_and_engines(cluster):
    for each in cluster.machines:
        printed = each.run(f"{from_page('corral cluster status')} 10.0.0.1:6379")
        nodes = {line.split()[0]: line.split()[1] for line in printed.splitlines() if line.startswith("10.")}
        assert nodes == {each.address: each.name for each in cluster.machines}
        assert printed.count("/srv/models/model.gguf") == N_ENGINES


def test_rays_own_tools_work(cluster):
    printed = cluster.third.run("ray status --address 10.0.0.1:6379", RAY_AUTH_MODE="token")
    assert "Active:\n 1 node_" in printed
    assert "6.0 CPU" in printed


@pytest.mark.parametrize("token", ["", "0" * 64])
def test_a_machine_without_the_secret_is_told_so(cluster, token):
    cluster.third.run("mkdir -p other/.ray")
    cluster.third.run(
        f"printf %s '{token}' > other/.ray/auth_token; [ -s other/.ray/auth_token ] || rm other/.ray/*"
    )
    for command in ("corral cluster status 10.0.0.1:6379", from_page("corral --ray")):
        printed = cluster.third.run(f"{command} || true", HOME="/home/operator/other")
        assert any("auth_token" in line for line in printed.splitlines()[:2]), printed
        assert "gcs_client" not in printed


@pytest.mark.parametrize("lost", ["engine", "actor", "raylet", "power", "cable"])
async def test_streams_continue_when_something_is_lost(cluster, answer, lost):
    third = cluster.third
    cluster.bring_engine_to(third)
    streams = await streaming(cluster)
    engine = third.processes("corral.link.worker")[0]
    if lost == "engine":
        engine.kill()
    elif lost == "actor":
        engine.parent().kill()
    elif lost == "raylet":
        next(each for each in third.processes() if each.name() == "raylet").kill()
    elif lost == "power":
        third.lose_power()
    else:
        third.cut()
    await check(streams, answer)
    assert cluster.is_healthy()
    if lost == "cable":
        await asyncio.sleep(35)
        third.plug()
    elif lost == "power":
        third.boot()
        cluster.join(third)
    elif lost == "raylet":
        cluster.rejoin(third)
    cluster.wait_whole()


@pytest.mark.parametrize("seconds", [10, 60, 300])
async def test_the_head_is_away_for_a_while(cluster, answer, seconds):
    streams = await streaming(cluster)
    (control,) = cluster.head.processes("gcs_server")
    control.suspend()
    resumed_at = time.monotonic() + seconds
    await check(streams, answer)
    while time.monotonic() < resumed_at:
        assert cluster.is_healthy()
        stream = Stream(cluster.url, **QUESTION)
        await check([stream], answer)
        await asyncio.sleep(1)
    control.resume()
    cluster.wait_whole()
    cluster.engines[0].kill()
    cluster.wait_whole()


async def test_a_head_that_is_lost_and_started_again(cluster, answer):
    """Its engine is lost with it, and starts again once there is a cluster; the others serve meanwhile."""
    cluster.bring_engine_to(cluster.head)
    cluster.head.lose_power()
    wait_until(lambda: cluster.states.count("ready") < N_ENGINES, 0.2)
    assert cluster.is_healthy()
    await check([Stream(cluster.url, **QUESTION)], answer)
    cluster.head.boot()
    cluster.give_token(cluster.head)
    cluster.head.run(from_page("corral cluster up --host"))
    for each in (cluster.second, cluster.third):
        cluster.rejoin(each)
    cluster.wait_whole()
    await check([Stream(cluster.url, **QUESTION)], answer)
    for each in cluster.machines:
        each.run(from_page("corral cluster down"))
