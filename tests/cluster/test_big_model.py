"""A model whose layers are on RPC workers of the cluster: the same answers, also when a worker is lost."""

from __future__ import annotations

import signal

import psutil
import pytest

from tests.system.process import CorralProcess, Stream, run_corral
from tests.tools.wait import wait_until

N_WORKERS = 2
OPTIONS = ["-c", 512, "-np", 1, "-t", 1, "-fa", "off"]
QUESTION = {"prompt": "hello world", "n_predict": 200, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def local(tiny) -> list[int]:
    """The answer without RPC."""
    with CorralProcess("-m", tiny, *OPTIONS) as server:
        return server.complete(**QUESTION, return_tokens=True)["tokens"]


@pytest.fixture(scope="module")
def server(nodes, tiny):
    cluster = ["--ray", nodes.address, "--rpc-workers", N_WORKERS]
    with CorralProcess("-m", tiny, *OPTIONS, *cluster) as server:
        yield server
    wait_until(lambda: not (nodes.engines or nodes.rpc_workers), 0.1)


def listening(process: psutil.Process) -> list[tuple[str, int]]:
    return [each.laddr for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN]


def node_of(process: psutil.Process) -> int:
    """The process of Ray that has started the actor."""
    return process.parent().ppid()


async def test_workers_are_on_all_nodes_and_private(server, nodes, local):
    stream = Stream(server.url, **QUESTION)
    await stream.task
    assert stream.tokens == local
    assert len({node_of(each) for each in (*nodes.engines, *nodes.rpc_workers)}) == 1 + N_WORKERS
    assert [host for each in nodes.rpc_workers for host, _ in listening(each)] == ["127.0.0.1"] * N_WORKERS
    status = run_corral("cluster", "status", nodes.address)
    assert all(str(each.pid) in status.stdout.split() for each in nodes.rpc_workers), status.stdout


@pytest.mark.parametrize("is_busy", [True, False])
async def test_a_lost_worker_is_replaced(server, nodes, local, is_busy):
    wait_until(lambda: len(nodes.rpc_workers) == N_WORKERS, 0.1)
    lost = nodes.rpc_workers[0]
    ((host, port),) = listening(lost)
    stream = Stream(server.url, **QUESTION)
    await (stream.reach(20) if is_busy else stream.task)
    lost.send_signal(signal.SIGKILL)
    server.wait_for(rf"engine lost .*{host}:{port}")
    if not is_busy:
        health = server.get("/health")
        assert health.status_code == 200 or f"{host}:{port}" in health.json()["error"]["message"]
        stream = Stream(server.url, **QUESTION)
    await stream.task
    assert stream.tokens == local
    assert server.get("/health").json()["status"] == "ok"
    assert lost not in nodes.rpc_workers


def test_what_does_not_fit_together_is_refused(tiny, nodes):
    for options, said in (
        (["--rpc-workers", 1], "--ray"),
        (["--rpc-workers", 1, "--ray", nodes.address, "--rpc", "127.0.0.1:50052"], "--rpc"),
    ):
        refused = run_corral("-m", tiny, *options)
        assert refused.returncode == 1
        assert said in refused.stderr
