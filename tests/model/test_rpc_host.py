"""An RPC worker of a cluster refuses what it cannot do, with the reason. Ray itself: tests/cluster."""

from __future__ import annotations

import contextlib
import socket

import psutil
import pytest

from corral import __version__
from corral.fleet.ray import rpc_host
from corral.fleet.ray.message import EnginePlace, decode_place

ELSEWHERE = "198.51.100.1"


async def start(version: str = __version__, may_be_public: bool = False) -> EnginePlace:
    return decode_place(await rpc_host.RpcHost().start(version, 1, 1, may_be_public))


@pytest.mark.parametrize(
    ("address", "options", "said"),
    [
        ("127.0.0.1", {"version": "0.0.1"}, "0.0.1"),
        (ELSEWHERE, {}, ELSEWHERE),
        (ELSEWHERE, {"may_be_public": True}, ELSEWHERE),  # it is not this machine's
    ],
    ids=["another version", "not private", "not ours"],
)
async def test_a_worker_that_cannot_start_says_why(monkeypatch, address, options, said):
    monkeypatch.setattr(rpc_host, "node_address", lambda: address)
    place = await start(**options)
    assert said in place.refusal
    assert not place.endpoint


async def test_a_worker_listens_until_its_server_is_killed(monkeypatch):
    monkeypatch.setattr(rpc_host, "node_address", lambda: "127.0.0.1")
    host = rpc_host.RpcHost()
    place = decode_place(await host.start(__version__, 1, 1, False))
    address, _, port = place.endpoint.rpartition(":")
    with contextlib.closing(socket.create_connection((address, int(port)))):
        assert decode_place(await host.describe()) == place
    psutil.Process(place.pid).kill()
    assert "SIGKILL" in await host.ended()
