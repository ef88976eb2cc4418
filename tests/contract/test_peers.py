"""A public address without a key: clients with a loopback or private address are answered, others are not."""

from __future__ import annotations

import logging

import pytest

from corral.core.address import is_private
from corral.core.settings import ServerSettings
from corral.server.listen import Listener, Reach
from corral.server.peers import guard_peers, warn_without_key
from tests.contract.inline import Server
from tests.contract.wire import ask

PRIVATE = [
    "127.0.0.1",
    "127.200.0.1",
    "10.1.2.3",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "169.254.1.1",
    "::1",
    "fc00::1",
    "fd12:3456::1",
    "fe80::1",
    "fe80::1%eth0",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:192.168.1.1",
]
PUBLIC = [
    "203.0.113.5",
    "8.8.8.8",
    "172.15.0.1",
    "172.32.0.1",
    "192.169.0.1",
    "100.64.0.1",
    "0.0.0.0",
    "2001:db8::1",
    "2606:4700::1111",
    "::ffff:8.8.8.8",
    "64:ff9b::a00:1",
    "fec0::1",
    "localhost",
    "",
]
OPEN = [
    (Reach.PUBLIC, {"allow_unauthenticated": True}),
    (Reach.PUBLIC, {"api_keys": ("k",)}),
    (Reach.PUBLIC, {"api_key_file": "keys"}),
    (Reach.LOCAL, {}),
    (Reach.UNIX, {}),
]


def guarded(reach: Reach = Reach.PUBLIC, **server):
    return guard_peers(Server().app, ServerSettings(**server), reach)


@pytest.mark.parametrize("address", PRIVATE)
async def test_private_addresses_are_answered(address):
    assert is_private(address)
    assert (await ask(guarded(), client=(address, 1234))).status == 200


@pytest.mark.parametrize("address", PUBLIC)
async def test_others_are_refused(address):
    assert not is_private(address)
    reply = await ask(guarded(), client=(address, 1234))
    assert (reply.status, reply.error["type"]) == (403, "permission_error")
    assert "--api-key" in reply.error["message"]
    assert "--allow-unauthenticated" in reply.error["message"]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("path", ["/health", "/v1/models", "/completion", "/none", "//health", "/docs", "/"])
async def test_whatever_they_ask_for(method, path):
    assert (await ask(guarded(), client=("203.0.113.5", 1), method=method, path=path)).status == 403


async def test_a_header_makes_nobody_private(monkeypatch):
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    for name in ("X-Forwarded-For", "X-Real-Ip", "Forwarded"):
        value = "for=127.0.0.1" if name == "Forwarded" else "127.0.0.1"
        assert (await ask(guarded(), (name, value), client=("203.0.113.5", 1))).status == 403
    forwarded = await ask(guarded(), ("X-Forwarded-For", "203.0.113.5"), client=("127.0.0.1", 1))
    assert forwarded.status == 200, "the address of the proxy counts"


async def test_an_unknown_address_is_refused():
    assert (await ask(guarded(), client=None)).status == 403


@pytest.mark.parametrize(("reach", "server"), OPEN)
async def test_where_all_are_answered(reach, server):
    assert (await ask(guarded(reach, **server), client=("203.0.113.5", 1))).status == 200
    assert (await ask(guarded(reach, **server), client=None)).status == 200


@pytest.mark.parametrize(
    ("reach", "server", "option"),
    [
        (Reach.PUBLIC, {}, "--api-key"),
        (Reach.PUBLIC, {"allow_unauthenticated": True}, "--allow-unauthenticated"),
        (Reach.PUBLIC, {"api_keys": ("k",)}, None),
        (Reach.LOCAL, {}, None),
        (Reach.LOCAL, {"allow_unauthenticated": True}, None),
        (Reach.UNIX, {}, None),
    ],
)
def test_the_log_warns_where_there_is_no_key(caplog, reach, server, option):
    warn_without_key(ServerSettings(**server), Listener([], "http://0.0.0.0:8080", reach))
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(told) == (option is not None)
    assert all(option in line and "http://0.0.0.0:8080" in line for line in told)
