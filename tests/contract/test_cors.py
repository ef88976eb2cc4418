"""Pages in browsers: which may read answers, and which may not even ask."""

from __future__ import annotations

import pytest

from corral.core.errors import CorralError
from corral.core.settings import ServerSettings
from corral.server.cors import Cors, Origin, cors_policy, parse_origin
from corral.server.hosts import HostControl, allowed_names
from corral.server.listen import Reach
from tests.contract.inline import Server
from tests.contract.wire import Reply, ask

HOST = ("Host", "localhost:8080")
KEY = ("Authorization", "Bearer secret")
LOCAL = [
    "http://localhost",
    "http://localhost:8080",
    "https://localhost:3000",
    "http://app.localhost:5173",
    "http://127.0.0.1",
    "http://127.9.9.9:3000",
    "http://[::1]",
    "http://[::1]:3000",
    "HTTP://LOCALHOST:1",
]
FOREIGN = [
    "https://evil.example",
    "http://notlocalhost",
    "http://localhost.evil.example",
    "http://127.0.0.1.evil.example",
    "http://localhost@evil.example",
    "http://evil.example/localhost",
    "http://localhost:8080:1",
    "http://localhost, http://evil.example",
    "http://192.168.0.1:8080",
    "http://0.0.0.0:8080",
    "http://[::2]",
    "file://localhost",
    "chrome-extension://localhost",
    "localhost",
    "null",
    "",
    "*",
]
ACCESS = "access-control-allow-origin"


def guarded(**server) -> Cors:
    """As the server has it, on this machine's own address."""
    settings = ServerSettings(**server)
    app = HostControl(Server(**server).app, allowed_names(settings, Reach.LOCAL))
    return Cors(app, cors_policy(settings))


async def preflight(app: Cors, origin: str, *headers: tuple[str, str], method: str = "POST") -> Reply:
    asked = ("Access-Control-Request-Method", method)
    return await ask(app, HOST, ("Origin", origin), asked, *headers, method="OPTIONS", path="/completion")


async def tokenize(app: Cors, *headers: tuple[str, str], host: tuple[str, str] = HOST) -> Reply:
    text = ("Content-Type", "text/plain")
    body = b'{"content": "a"}'
    return await ask(app, host, text, *headers, method="POST", path="/tokenize", body=body)


def access_headers(reply: Reply) -> list[str]:
    return [name for name, _ in reply.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("origin", LOCAL)
async def test_without_keys_pages_of_this_machine_may(origin):
    app = guarded()
    asked = await preflight(app, origin, ("Access-Control-Request-Headers", "authorization"))
    assert (asked.status, asked.body, asked.get(ACCESS)) == (200, b"", origin)
    assert asked.get("access-control-allow-methods") == "GET, POST, DELETE, OPTIONS"
    assert asked.get("access-control-allow-headers") == "authorization", "with credentials a star is literal"
    assert asked.get("access-control-max-age") == "600"
    assert asked.get("access-control-allow-credentials") == "true"
    assert asked.get("vary").startswith("Origin")
    reply = await tokenize(app, ("Origin", origin))
    assert (reply.status, reply.get(ACCESS), reply.get("vary")) == (200, origin, "Origin")
    assert reply.get("access-control-allow-credentials") == "true"


@pytest.mark.parametrize("origin", FOREIGN)
async def test_without_keys_others_may_not(origin):
    app = guarded()
    asked = await preflight(app, origin)
    assert (asked.status, asked.body, access_headers(asked)) == (200, b"", [])
    assert asked.get("vary").startswith("Origin")
    for method in ("POST", "DELETE", "PUT", "PATCH"):
        reply = await ask(app, HOST, ("Origin", origin), method=method, path="/tokenize", body=b"{}")
        assert (reply.status, reply.error["type"]) == (403, "permission_error")
        assert "--cors-origins" in reply.error["message"]
        assert "--api-key" in reply.error["message"]
        assert (access_headers(reply), reply.get("vary")) == ([], "Origin")
    for method in ("GET", "HEAD"):  # they cannot read it, and it does nothing
        reply = await ask(app, HOST, ("Origin", origin), method=method)
        assert reply.status in (200, 405)
        assert access_headers(reply) == []


async def test_a_form_of_a_stranger_does_no_work():
    """What a browser sends without having asked is refused before any of it is read."""
    n_read = 0

    async def app(scope, receive, send):
        nonlocal n_read
        n_read += 1

    cors = Cors(app, cors_policy(ServerSettings()))
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        headers = (HOST, ("Origin", "https://evil.example"), ("Content-Type", kind))
        assert (await ask(cors, *headers, method="POST", path="/completion")).status == 403
    assert n_read == 0


async def test_a_client_that_is_no_browser_has_no_origin():
    reply = await tokenize(guarded())
    assert (reply.status, access_headers(reply), reply.get("vary")) == (200, [], "Origin")


@pytest.mark.parametrize(
    ("host", "origin", "is_own"),
    [
        ("box.lan:8080", "http://box.lan:8080", True),
        ("box.lan:8080", "https://box.lan:8080", True),
        ("box.lan", "http://box.lan", True),
        ("box.lan", "https://box.lan", True),
        ("Box.lan.", "https://box.LAN:443", True),
        ("[fd00::1]:8080", "http://[fd00::1]:8080", True),
        ("box.lan:8080", "http://box.lan", False),
        ("box.lan:8080", "http://box.lan:8081", False),
        ("box.lan", "http://box.lan.evil.example", False),
        ("box.lan", "http://evil.example", False),
        ("box.lan", "null", False),
    ],
)
async def test_the_server_s_own_pages_may(host, origin, is_own):
    app = guarded(allowed_hosts=("*",))
    reply = await tokenize(app, ("Origin", origin), host=("Host", host))
    assert reply.status == (200 if is_own else 403)
    assert access_headers(reply) == []


async def test_a_name_that_leads_here_is_no_way_in():
    """To the browser it is the page's own server, and so it looks here: but not to who checks the name."""
    host, origin = ("Host", "evil.example:8080"), ("Origin", "http://evil.example:8080")
    reply = await tokenize(guarded(), origin, host=host)
    assert reply.status == 403
    assert "--allowed-hosts" in reply.error["message"]


async def test_with_keys_every_page_may_that_has_one():
    app = guarded(api_keys=("secret",))
    for origin in (*LOCAL, *FOREIGN, "web.mydomain.fr"):
        asked = await preflight(app, origin, ("Access-Control-Request-Headers", "authorization"))
        assert (asked.status, asked.get(ACCESS)) == (200, origin)
        credentials = "true" if origin in LOCAL else None
        assert asked.get("access-control-allow-credentials") == credentials
        reply = await tokenize(app, ("Origin", origin), KEY)
        assert (reply.status, reply.get(ACCESS)) == (200, origin)
        assert reply.get("access-control-allow-credentials") == credentials
        refused = await tokenize(app, ("Origin", origin))
        assert (refused.status, refused.get(ACCESS), refused.get("vary")) == (401, origin, "Origin")


async def test_a_list_of_origins():
    app = guarded(cors_origins=("https://Example.com", "http://box.lan:8080/", "app://obsidian.md"))
    for origin in (
        "https://example.com",
        "https://example.com:443",
        "http://box.lan:8080",
        "app://obsidian.md",
    ):
        assert (await tokenize(app, ("Origin", origin))).get(ACCESS) == origin
    for origin in (
        "http://example.com",
        "https://a.example.com",
        "http://box.lan",
        "http://localhost",
        "null",
    ):
        assert (await tokenize(app, ("Origin", origin))).status == 403
        assert access_headers(await preflight(app, origin)) == []
    both = guarded(cors_origins=("localhost", "https://example.com"))
    for origin in (*LOCAL, "https://example.com"):
        assert (await tokenize(both, ("Origin", origin))).get(ACCESS) == origin
    assert (await tokenize(both, ("Origin", "https://evil.example"))).status == 403


async def test_a_list_of_origins_beside_keys():
    """The key decides who may ask, the list who may read the answer."""
    app = guarded(cors_origins=("https://example.com",), api_keys=("secret",))
    reply = await tokenize(app, ("Origin", "https://evil.example"), KEY)
    assert (reply.status, access_headers(reply)) == (200, [])
    assert (await tokenize(app, ("Origin", "https://example.com"), KEY)).get(ACCESS) == "https://example.com"


async def test_a_star_opens_it_for_all():
    app = guarded(cors_origins=("*",))
    for origin in (*LOCAL, *FOREIGN):
        reply = await tokenize(app, ("Origin", origin))
        assert (reply.status, reply.get(ACCESS)) == (200, origin)


async def test_two_origins_are_none():
    reply = await tokenize(guarded(), ("Origin", "http://localhost"), ("Origin", "http://localhost"))
    assert reply.status == 403


async def test_credentials_for_those_that_are_named():
    app = guarded(cors_origins=("https://example.com",), cors_credentials=True)
    asked = await preflight(
        app, "https://example.com", ("Access-Control-Request-Headers", "x-one, authorization")
    )
    assert asked.get("access-control-allow-credentials") == "true"
    assert asked.get("access-control-allow-headers") == "x-one, authorization"
    assert asked.get("access-control-allow-methods") == "GET, POST, DELETE, OPTIONS"
    reply = await tokenize(app, ("Origin", "https://example.com"))
    assert reply.get("access-control-allow-credentials") == "true"
    assert access_headers(await preflight(app, "https://evil.example")) == []
    assert access_headers(await tokenize(app, ("Origin", "https://evil.example"))) == []


@pytest.mark.parametrize("origins", [("*",), ("https://example.com", "*"), ()])
def test_credentials_for_everybody_are_a_mistake(origins):
    with pytest.raises(CorralError, match=r"--cors-credentials.*--cors-origins"):
        cors_policy(ServerSettings(cors_origins=origins, cors_credentials=True))


@pytest.mark.parametrize(
    "origin",
    ["example.com", "https://example.com/chat", "https://", "null", "https://*.example.com", "http://a b"],
)
def test_what_can_be_no_origin(origin):
    with pytest.raises(CorralError, match="--cors-origins: '"):
        cors_policy(ServerSettings(cors_origins=(origin,)))


async def test_methods_and_headers_of_the_options():
    app = guarded(cors_methods=("get", "POST"), cors_headers=("X-One", "Content-Type"))
    asked = await preflight(app, "http://localhost")
    assert asked.get("access-control-allow-methods") == "GET, POST"
    assert asked.get("access-control-allow-headers") == "X-One, Content-Type"


async def test_headers_that_pages_may_read():
    async def app(scope, receive, send):
        headers = [
            (b"x-queue-position", b"1"),
            (b"x-queue-wait", b"2"),
            (b"x-other", b"3"),
            (b"vary", b"Accept"),
        ]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body"})

    cors = Cors(app, cors_policy(ServerSettings()))
    reply = await ask(cors, HOST, ("Origin", "http://localhost"))
    exposed = ", ".join(reply.all("access-control-expose-headers"))
    assert exposed == "X-Request-Id, Retry-After, x-queue-position, x-queue-wait"
    assert reply.all("vary") == ["Accept", "Origin"]
    assert access_headers(await ask(cors, HOST, ("Origin", "https://evil.example"))) == []


async def test_errors_of_all_kinds_can_be_read():
    app = guarded()
    origin = ("Origin", "http://localhost")
    for host, path, status in ((HOST, "/none", 404), (HOST, "/tokenize", 405), (("Host", "evil"), "/", 403)):
        reply = await ask(app, host, origin, path=path)
        assert (reply.status, reply.get(ACCESS)) == (status, "http://localhost")


async def test_options_without_a_question_is_a_request_like_others():
    reply = await ask(guarded(), HOST, ("Origin", "http://localhost"), method="OPTIONS", path="/completion")
    assert (reply.status, reply.get(ACCESS)) == (405, "http://localhost")


async def test_a_network_that_is_nearer_than_the_page():
    asked = ("Access-Control-Request-Private-Network", "true")
    name = "access-control-allow-private-network"
    assert (await preflight(guarded(), "http://localhost", asked)).get(name) == "true"
    assert (await preflight(guarded(), "http://localhost")).get(name) is None
    assert access_headers(await preflight(guarded(), "https://evil.example", asked)) == []


def test_parts_of_an_origin():
    assert parse_origin("https://Example.com") == Origin("https", "example.com", 443)
    assert parse_origin("http://[::1]:8080") == Origin("http", "::1", 8080)
    assert parse_origin("app://x") == Origin("app", "x", None)
