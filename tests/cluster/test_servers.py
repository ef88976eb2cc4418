"""Several servers with the same storage on one cluster: Ray reserves engines for each, clients come through a
proxy that sends a key to the same server, and what a lost server did is continued by another one."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster.conftest import Nodes
from tests.system.durable import Reader, by_choice
from tests.system.process import START_S, CorralProcess
from tests.tools.wait import wait_until

N_CPUS = 3  # of the cluster; an engine reserves one
KEYS = ("one", "two", "three", "four")
DIRECTORIES = ("shared-storage", "chats", "responses", "batches", "journal")
DOCUMENT = "This is a document. " * 40

Start = Callable[..., CorralProcess]


@pytest.fixture
def start(nodes, tiny, tmp_path) -> Iterator[Start]:
    """Starts a server with so many engines."""
    for name in DIRECTORIES:
        (tmp_path / name).mkdir()
    storage = [part for name in DIRECTORIES for part in (f"--{name}", tmp_path / name)]
    keys = write_keys(tmp_path / "keys")
    shape = ("-c", 4096, "-np", 2, "-t", 1, "--batch-exact", "--api-key-file", keys)
    with contextlib.ExitStack() as servers:

        def run(n_engines: int, wait: bool = True) -> CorralProcess:
            cluster = ("--ray", nodes.address, "--engines", n_engines)
            return servers.enter_context(CorralProcess("-m", tiny, *shape, *cluster, *storage, wait=wait))

        yield run
    wait_until(lambda: not nodes.engines, 0.1)


def write_keys(path: Path) -> Path:
    path.write_text("".join(f"{key}:{key}\n" for key in KEYS))
    return path


class Sticky:
    """What a proxy does that hashes the key: the same server for a key while it lives, else the next one."""

    def __init__(self, servers: list[CorralProcess], key: str) -> None:
        self._servers = servers
        self._first = zlib.crc32(key.encode()) % len(servers)
        self.headers = {"authorization": f"Bearer {key}"}
        self.is_up = asyncio.Event()
        self.is_up.set()

    @property
    def server(self) -> CorralProcess:
        in_turn = [*self._servers[self._first :], *self._servers[: self._first]]
        return next(server for server in in_turn if server.process.poll() is None)

    @property
    def url(self) -> str:
        return self.server.url

    def ask(self, path: str, method: str = "POST", **body: object) -> Any:
        answer = httpx.request(
            method, self.url + path, json=body or None, headers=self.headers, timeout=START_S
        )
        assert answer.status_code == 200, answer.text
        return answer.json()


def engines_of(server: CorralProcess) -> set[int]:
    return {engine["pid"] for engine in Sticky([server], KEYS[0]).ask("/engines", "GET")["engines"]}


def ids_of(nodes: Nodes) -> set[int]:
    return {engine.pid for engine in nodes.engines}


def test_each_has_engines_of_its_own_and_each_key_one_cache(start, nodes):
    servers = [start(2), start(1)]
    engines = [engines_of(server) for server in servers]
    assert [len(each) for each in engines] == [2, 1]
    assert engines[0] | engines[1] == ids_of(nodes)
    clients = [Sticky(servers, key) for key in KEYS]
    assert {client.url for client in clients} == {server.url for server in servers}
    for client in clients:
        timings = [client.ask("/completion", prompt=DOCUMENT, n_predict=1)["timings"] for _ in range(3)]
        assert timings[0]["cache_n"] == 0, "another key's cache"
        assert all(each["cache_n"] > 5 * each["prompt_n"] for each in timings[1:])
    clients[0].ask(f"/chats/{'0' * 32}", "PUT", title="hello", messages={})
    for server in servers:
        assert [chat["title"] for chat in Sticky([server], KEYS[0]).ask("/chats", "GET")] == ["hello"]


def test_a_server_waits_for_engines_until_another_one_has_ended(start, nodes):
    first, second = start(2), start(2, wait=False)
    assert second.wait_for(r"waiting for a node with (\d) free CPUs") == "1"
    assert len(nodes.engines) == N_CPUS
    assert Sticky([first], KEYS[0]).ask("/completion", prompt="x", n_predict=1)["tokens_predicted"] == 1
    first.stop()
    second.url = second.wait_for(r"ready on (\S+)")
    assert engines_of(second) == ids_of(nodes)


async def test_another_server_continues_what_a_lost_one_did_and_its_engines_are_free(start, nodes):
    servers = [start(2), start(1)]
    client = next(each for each in (Sticky(servers, key) for key in KEYS) if each.server is servers[0])
    body = {"prompt": "hello", "n_predict": 600, "ignore_eos": True, "seed": 1}
    undisturbed = Reader(client, "/completion", body, **client.headers)
    await undisturbed.task
    disturbed = Reader(client, "/completion", body, **client.headers)
    await disturbed.reach(10)
    await asyncio.to_thread(servers[0].kill)
    await disturbed.task
    assert disturbed.n_posts >= 2
    assert by_choice(disturbed.events) == by_choice(undisturbed.events)
    wait_until(lambda: ids_of(nodes) == engines_of(servers[1]), 0.1)
    servers.append(start(2))
    assert ids_of(nodes) == engines_of(servers[1]) | engines_of(servers[2])
