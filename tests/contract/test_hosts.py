"""The Host header: a page of a stranger cannot have its own name lead here."""

from __future__ import annotations

import pytest

from corral.core.errors import CorralError
from corral.core.settings import ServerSettings
from corral.server.hosts import Host, HostControl, HostNames, allowed_names, is_local_name, parse_host
from corral.server.listen import Reach
from tests.contract.inline import Server
from tests.contract.wire import ask

LOCAL = [
    "localhost",
    "localhost:8080",
    "LocalHost:1",
    "localhost.",
    "localhost.:80",
    "localhost:",
    "app.localhost",
    "127.0.0.1",
    "127.0.0.1:8080",
    "127.1.2.3",
    "[::1]",
    "[::1]:8080",
    "[0:0:0:0:0:0:0:1]:9",
    "[::ffff:127.0.0.1]",
]
FOREIGN = [
    "evil.example",
    "evil.example:8080",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "notlocalhost",
    "localhost@evil.example",
    "evil.example@localhost",
    "localhost/evil.example",
    "localhost:8080:8080",
    "localhost:evil",
    "localhost, evil.example",
    "localhost evil.example",
    "192.168.0.1",
    "0.0.0.0",
    "[::]",
    "[::2]",
    "::1",
    "[::1",
    "[::1]x",
    "[localhost]",
    "*",
    ".localhost:x",
    ":8080",
    "",
    "é.example",
    "localhost\x00",
]


def guarded(reach: Reach = Reach.LOCAL, **server) -> HostControl:
    return HostControl(Server().app, allowed_names(ServerSettings(**server), reach))


@pytest.mark.parametrize("host", LOCAL)
async def test_names_of_this_machine(host):
    assert (await ask(guarded(), ("Host", host))).status == 200


@pytest.mark.parametrize("host", FOREIGN)
async def test_other_names_are_refused(host):
    reply = await ask(guarded(), ("Host", host))
    assert (reply.status, reply.error["type"]) == (403, "permission_error")
    assert "--allowed-hosts" in reply.error["message"]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", ["/health", "/v1/models", "/completion", "/none", "//health", "/docs", "*"])
async def test_whatever_they_are_about(method, path):
    assert (await ask(guarded(), ("Host", "evil.example"), method=method, path=path)).status == 403


async def test_what_the_options_name():
    app = guarded(host="box.lan", allowed_hosts=("Example.com", "*.Example.org", "host:8080", "fd00::1"))
    for host in ("box.lan", "BOX.lan:80", "example.COM.", "a.example.org", "a.b.example.org:1", "host"):
        assert (await ask(app, ("Host", host))).status == 200, host
    assert (await ask(app, ("Host", "[fd00::1]:8080"))).status == 200
    assert (await ask(app, ("Host", "localhost"))).status == 200
    for host in (
        "a.example.com",
        "example.org",
        ".example.orgx",
        "badexample.org",
        "box.lan.evil",
        "fd00::1",
    ):
        assert (await ask(app, ("Host", host))).status == 403, host


@pytest.mark.parametrize(
    "host",
    [
        *LOCAL,
        "192.168.0.1:8080",
        "8.8.8.8",
        "[fd00::1]:8080",
        "0.0.0.0:8080",
        "box",
        "corral:8080",
        "box.local.",
        "corral.models.svc.cluster.local",
        "host.docker.internal",
        "box.home.arpa",
        "router.lan",
        "box.corp.example",
    ],
)
async def test_private_names_where_only_private_clients_are_answered(host):
    app = guarded(Reach.PUBLIC, host="box.corp.example")
    assert (await ask(app, ("Host", host))).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "box.corp.example.com", "192.168.0.1.nip.io", "x.local.evil.example", ".", ""]
)
async def test_a_public_name_cannot_lead_to_a_private_server(host):
    """A page that was loaded from this name has had DNS lead it here."""
    reply = await ask(guarded(Reach.PUBLIC, host="0.0.0.0"), ("Host", host))
    assert reply.status == 403
    assert "--allowed-hosts" in reply.error["message"]


async def test_where_others_can_connect_any_name_will_do_unless_some_are_named():
    for reach, access in (
        (Reach.PUBLIC, {"api_keys": ("k",)}),
        (Reach.PUBLIC, {"allow_unauthenticated": True}),
        (Reach.UNIX, {}),
    ):
        assert (await ask(guarded(reach, **access), ("Host", "anything.example"))).status == 200
    for reach in (Reach.PUBLIC, Reach.UNIX):
        named = guarded(reach, host="0.0.0.0", allowed_hosts=("example.com",))
        assert (await ask(named, ("Host", "anything.example"))).status == 403
        assert (await ask(named, ("Host", "example.com:8080"))).status == 200
        assert (await ask(named, ("Host", "localhost:8080"))).status == 200
    assert (await ask(guarded(allowed_hosts=("*",)), ("Host", "anything.example"))).status == 200


async def test_an_address_that_is_no_name_is_no_obstacle():
    app = guarded(Reach.PUBLIC, host="fe80::1%eth0", allowed_hosts=("example.com",))
    assert (await ask(app, ("Host", "example.com"))).status == 200


@pytest.mark.parametrize("names", [(), ("*",)])
async def test_one_header_and_no_more(names):
    app = guarded(allowed_hosts=names)
    two = await ask(app, ("Host", "localhost"), ("Host", "localhost"))
    assert (two.status, two.error["type"]) == (400, "invalid_request_error")
    assert (await ask(app)).status == 400
    assert (await ask(app, http_version="1.0")).status == 200
    assert (await ask(app, ("Host", "localhost"), ("Host", "evil"), http_version="1.0")).status == 400
    assert (await ask(app, ("Host", "a b"))).status == (400 if names else 403)


@pytest.mark.parametrize(
    "name", ["https://example.com", "a b", "example.com/", "*.", "*.*.com", "**", "a,b", "["]
)
def test_what_can_be_no_name(name):
    with pytest.raises(CorralError, match="--allowed-hosts: '"):
        HostNames([name])


def test_parts_of_a_host():
    assert parse_host("Example.com:80") == Host("example.com", 80)
    assert parse_host("[::1]:8080") == Host("::1", 8080)
    assert parse_host("a.:") == Host("a", None)
    assert parse_host("a" * 300) is None
    assert is_local_name("x.y.localhost")
    assert not is_local_name("localhost.x")
    assert not is_local_name("")
