"""Media behind http(s) URLs, from real servers on the loopback: redirects, sizes, deadlines, names, TLS."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import socket
import ssl
import subprocess
from ipaddress import ip_address
from typing import Any

import pytest

from corral.media.decoded import MAX_BYTES, BadMedia
from corral.media.remote import MAX_PIECES, RemoteMedia, is_public
from tests.tools.site import HERE, LATE_S, Site, answer, is_here, redirect

NEAR = ip_address("127.0.0.2")  # an address of this machine that is not allowed
BODY = bytes(range(256)) * 1024


@pytest.fixture
def remote():
    return RemoteMedia(LATE_S, is_here)


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
UNTIL_CLOSED = b"HTTP/1.0 200 OK\r\n\r\n"

BODIES: dict[str, Any] = {
    "with a length": answer(BODY),
    "empty": answer(b""),
    "in chunks": CHUNKED + chunk(BODY[:1]) + chunk(BODY[1:]) + chunk(b""),
    "until it is closed": UNTIL_CLOSED + BODY,
    "after a hint": b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + answer(BODY),
    "not encoded": answer(BODY, Content_Encoding="Identity"),
    "with a location": answer(BODY, Location="/elsewhere"),
}


@pytest.mark.parametrize("page", BODIES)
async def test_a_body_is_fetched(remote, page):
    async with Site({"/a.png": BODIES[page]}) as site:
        assert await remote.fetch(f"{site.url}/a.png") == (b"" if page == "empty" else BODY)


async def test_the_request_says_what_it_must(remote, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    async with Site({"/a%20b?c=d%20e": answer()}) as site:
        await remote.fetch(f"{site.url}/a b?c=d e#f")
    lines = site.requests[0].lower().splitlines()
    assert f"host: 127.0.0.1:{site.port}" in lines
    assert "accept-encoding: identity" in lines
    assert not any(line.startswith(("authorization", "cookie", "proxy", "referer")) for line in lines)


async def refused(remote, url):
    with pytest.raises(BadMedia) as caught:
        await remote.fetch(url)
    assert "127.0.0" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_followed(remote, status):
    pages = {"/a/0": redirect("1", status), "/a/1": redirect("/a/2?x", status), "/a/2": answer(BODY)}
    async with Site(pages) as site:
        pages["/a/2?x"] = redirect(f"{site.url}/a/2", status)
        assert await remote.fetch(f"{site.url}/a/0") == BODY
    assert [request.split()[1] for request in site.requests] == ["/a/0", "/a/1", "/a/2?x", "/a/2"]


async def test_redirects_end(remote):
    pages = {f"/{n}": redirect(f"/{n + 1}") for n in range(9)}
    async with Site(pages) as site:
        assert await refused(remote, f"{site.url}/0") == "it redirects more than 3 times"
    assert len(site.requests) == 4


TARGETS: dict[str, Any] = {
    "file:///etc/passwd": "only http and https URLs are fetched",
    "ftp://127.0.0.1/": "only http and https URLs are fetched",
    "data:image/png;base64,AAAA": "only http and https URLs are fetched",
    "javascript:0": "only http and https URLs are fetched",
    "http://user:password@127.0.0.1/": "its URL must not contain a user name or password",
    "//127.0.0.1:0/": "its URL is not valid",
    "http://[::1/": "its URL is not valid",
    "http://a b/": "its URL is not valid",
    "http://127.0.0.2/": "its address is not public",
    "//127.0.0.2/": "its address is not public",
    "http://0x7f.2/": "its address is not public",
    "http://[::1]/": "its address is not public",
    "http://[::ffff:127.0.0.1]/": "its address is not public",
    "http://169.254.169.254/latest/meta-data/": "its address is not public",
}


@pytest.mark.parametrize("target", TARGETS)
async def test_redirects_are_checked_like_the_first_url(remote, target):
    async with Site({"/": redirect(target)}) as site:
        assert await refused(remote, site.url) == TARGETS[target]
    assert len(site.requests) == 1


async def test_nobody_connects_to_what_is_not_allowed(remote):
    async with Site({"/": answer(BODY)}, NEAR) as near, Site({"/": redirect(near.url)}) as site:
        assert await refused(remote, site.url) == "its address is not public"
        assert await refused(remote, near.url) == "its address is not public"
        assert near.requests == []
        assert await RemoteMedia(LATE_S, lambda _: True).fetch(site.url) == BODY


async def test_by_default_nothing_here_is_allowed():
    async with Site({"/": answer(BODY)}) as site:
        assert await refused(RemoteMedia(), site.url) == "its address is not public"
        assert await refused(RemoteMedia(), f"http://localhost:{site.port}/") == "its address is not public"
    assert site.requests == []


@pytest.mark.parametrize("status", [201, 204, 206, 300, 304, 400, 401, 404, 500, 503])
async def test_other_statuses_are_refused(remote, status):
    async with Site({"/": answer(b"" if status in (204, 304) else b"secret", status)}) as site:
        assert await refused(remote, site.url) == f"status {status}"


async def test_a_redirect_to_nowhere_is_a_status(remote):
    async with Site({"/": answer(status=302)}) as site:
        assert await refused(remote, site.url) == "status 302"


async def never(*_, **__):
    await asyncio.Event().wait()


async def write_forever(writer, data):
    while True:
        writer.write(data)
        await writer.drain()


ENDLESS: dict[str, Any] = {
    "in chunks": (CHUNKED, chunk(bytes(1 << 20))),
    "until it is closed": (UNTIL_CLOSED, bytes(1 << 20)),
}


@pytest.mark.parametrize("page", ENDLESS)
async def test_a_body_without_a_length_is_cut_at_the_cap(remote, page):
    async def write(writer):
        head, piece = ENDLESS[page]
        writer.write(head)
        await write_forever(writer, piece)

    async with Site({"/": write}) as site:
        assert await refused(remote, site.url) == "it is larger than 32 MiB"


async def test_a_length_over_the_cap_is_refused_at_once(remote):
    async def write(writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (MAX_BYTES + 1))
        await writer.drain()
        await never()

    async with Site({"/": write}) as site:
        assert await refused(remote, site.url) == "it is larger than 32 MiB"


async def test_a_body_as_large_as_the_cap_is_fetched(remote):
    async with Site({"/": answer(bytes(MAX_BYTES))}) as site:
        assert len(await remote.fetch(site.url)) == MAX_BYTES


async def test_a_body_of_crumbs_is_refused(remote):
    async def write(writer):
        writer.write(CHUNKED)
        await write_forever(writer, chunk(b"x") * 4096)

    async with Site({"/": write}) as site:
        assert await refused(remote, site.url) == "the server sent it in too many small chunks"
    assert MAX_PIECES * 1400 > MAX_BYTES


@pytest.mark.parametrize(
    "encoding", ["gzip", "deflate", "br", "zstd", "x-gzip", "gzip, identity", "whatever"]
)
async def test_encoded_bodies_are_refused(remote, encoding):
    async with Site({"/": answer(gzip.compress(BODY), Content_Encoding=encoding)}) as site:
        assert "compressed" in await refused(remote, site.url)


BROKEN: dict[str, Any] = {
    "nothing": b"",
    "no http": b"SSH-2.0-OpenSSH_9.6\r\n" * 9,
    "half a head": b"HTTP/1.1 200 OK\r\nContent-",
    "less than its length": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nless",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nless",
    "a length that is none": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nless",
    "half a chunk": CHUNKED + b"64\r\nless",
    "no chunk": CHUNKED + b"less\r\n",
    "endless headers": b"HTTP/1.1 200 OK\r\n" + b"X-Header: something\r\n" * 20_000,
    "a switch of protocols": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
}


@pytest.mark.parametrize("page", BROKEN)
async def test_broken_answers_are_refused(remote, page):
    async with Site({"/": BROKEN[page]}) as site:
        message = await refused(remote, site.url)
    assert message in ("it could not be fetched", "status 101")


async def test_a_refused_connection(remote):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/"
        assert await refused(remote, url) == "it could not be fetched"


async def drip(writer):
    writer.write(CHUNKED)
    while True:
        writer.write(chunk(b"x"))
        await writer.drain()
        await asyncio.sleep(0.01)


async def hint(writer):
    while True:
        writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.01)


async def stall(writer):
    writer.write(answer(b"body")[:-1])
    await writer.drain()
    await never()


@pytest.mark.parametrize("write", [drip, hint, stall])
async def test_a_slow_body_meets_the_deadline(write):
    async with Site({"/": write}) as site:
        assert await refused(RemoteMedia(0.3, is_here), site.url) == "fetching it took too long"


async def test_a_slow_resolver_meets_the_deadline(monkeypatch):
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", never)
    assert await refused(RemoteMedia(0.1, is_here), "http://slow.test/") == "fetching it took too long"


async def test_redirects_share_one_deadline():
    async def write(writer):
        await asyncio.sleep(0.2)
        writer.write(redirect("/"))
        await writer.drain()

    async with Site({"/": write}) as site:
        assert await refused(RemoteMedia(0.3, is_here), site.url) == "fetching it took too long"


async def test_a_cancelled_fetch_ends(remote):
    asked = asyncio.Event()

    async def write(writer):
        asked.set()
        await stall(writer)

    async with Site({"/": write}) as site:
        task = asyncio.create_task(remote.fetch(site.url))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


class Resolver:
    """Answers with the next of its lists each time it is asked for a name."""

    def __init__(self, monkeypatch, *answers):
        self.names = []
        self._answers = iter(answers)
        self._numbers = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self)

    def __call__(self, host, port, *_, **__):
        try:
            ip_address(host)
        except ValueError:
            self.names.append(host)
            found = next(self._answers)
        else:
            found = [host]
        return [entry for one in found for entry in self._numbers(one, port, type=socket.SOCK_STREAM)]


async def test_a_name_is_resolved_once(remote, monkeypatch):
    """A name that has another address the next time it is asked for gets nobody anywhere."""
    resolver = Resolver(monkeypatch, [str(HERE)], [str(NEAR)])
    async with Site({"/": answer(BODY)}) as site:
        assert await remote.fetch(f"http://Rebinding.Test:{site.port}/") == BODY
    assert resolver.names == ["rebinding.test"]
    assert f"host: rebinding.test:{site.port}\r\n" in site.requests[0].lower()


async def test_a_redirect_to_the_same_name_is_resolved_again(remote, monkeypatch):
    Resolver(monkeypatch, [str(HERE)], [str(NEAR)])
    async with Site({"/": redirect("/2"), "/2": answer(BODY)}) as site:
        assert await refused(remote, f"http://rebinding.test:{site.port}/") == "its address is not public"
    assert len(site.requests) == 1


@pytest.mark.parametrize("addresses", [["127.0.0.1", "127.0.0.2"], ["127.0.0.2", "127.0.0.1"]])
async def test_one_address_that_is_not_allowed_spoils_the_others(remote, monkeypatch, addresses):
    Resolver(monkeypatch, addresses)
    async with Site({"/": answer(BODY)}) as site:
        assert await refused(remote, f"http://both.test:{site.port}/") == "its address is not public"
    assert site.requests == []


@pytest.mark.parametrize(
    "private", ["10.0.0.1", "::1", "fe80::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "100.64.0.1"]
)
async def test_public_names_with_private_addresses(monkeypatch, private):
    Resolver(monkeypatch, ["93.184.216.34", private])
    assert (
        await refused(RemoteMedia(is_allowed=is_public), "https://evil.test/") == "its address is not public"
    )


async def test_a_name_that_nobody_has(remote, monkeypatch):
    def resolve(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert await refused(remote, "http://nobody.test/") == "it could not be fetched"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """The certificate of good.test, signed by itself, with its key in the same file."""
    directory = tmp_path_factory.mktemp("tls")
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=good.test"
    )
    command += " -addext subjectAltName=DNS:good.test -keyout key.pem -out certificate.pem"
    subprocess.run(command.split(), cwd=directory, check=True, capture_output=True)
    both = directory / "both.pem"
    both.write_bytes((directory / "certificate.pem").read_bytes() + (directory / "key.pem").read_bytes())
    return both


@pytest.fixture
def server_tls(certificate):
    context: Any = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    context.names = []
    context.sni_callback = lambda _, name, __: context.names.append(name)
    return context


@pytest.fixture
def secure(certificate):
    """Trusts that one certificate."""
    return RemoteMedia(LATE_S, is_here, tls=ssl.create_default_context(cafile=certificate))


async def test_tls_is_for_the_name_and_not_the_address(monkeypatch, secure, server_tls):
    Resolver(monkeypatch, *itertools.repeat([str(HERE)], 9))
    async with Site({"/": answer(BODY)}, tls=server_tls) as site:
        assert await secure.fetch(f"https://good.test:{site.port}/") == BODY
        assert await secure.fetch(f"https://good.test.:{site.port}/") == BODY
        assert await refused(secure, f"https://bad.test:{site.port}/") == "it could not be fetched"
        assert await refused(secure, site.url) == "it could not be fetched"
    assert server_tls.names == ["good.test", "good.test", "bad.test", None]
    assert len(site.requests) == 2
    assert f"host: good.test:{site.port}\r\n" in site.requests[0].lower()


async def test_a_certificate_of_nobody_we_trust(monkeypatch, remote, server_tls):
    Resolver(monkeypatch, [str(HERE)])
    async with Site({"/": answer(BODY)}, tls=server_tls) as site:
        assert await refused(remote, f"https://good.test:{site.port}/") == "it could not be fetched"
    assert site.requests == []


async def test_a_redirect_to_another_name_needs_its_certificate(monkeypatch, secure, server_tls):
    """The connection that is open already was for another name."""
    Resolver(monkeypatch, *itertools.repeat([str(HERE)], 2))
    pages = {}
    async with Site(pages, tls=server_tls) as site:
        pages["/"] = redirect(f"https://bad.test:{site.port}/2")
        pages["/2"] = answer(BODY)
        assert await refused(secure, f"https://good.test:{site.port}/") == "it could not be fetched"
    assert len(site.requests) == 1


async def test_redirects_do_not_leave_tls(monkeypatch, secure, server_tls):
    Resolver(monkeypatch, *itertools.repeat([str(HERE)], 9))
    async with Site({"/": answer(BODY)}) as plain, Site({}, tls=server_tls) as site:
        site.pages |= {"/down": redirect(plain.url), "/": answer(BODY)}
        plain.pages["/up"] = redirect(f"https://good.test:{site.port}/")
        message = await refused(secure, f"https://good.test:{site.port}/down")
        assert message == "it redirects from https to http"
        assert plain.requests == []
        assert await secure.fetch(f"{plain.url}/up") == BODY


async def test_what_speaks_no_tls(secure):
    async def greet(_, writer):
        writer.write(answer(BODY, 400))
        await writer.drain()
        writer.close()
        closed.append(writer.wait_closed())

    closed = []
    async with await asyncio.start_server(greet, str(HERE)) as server:
        port = server.sockets[0].getsockname()[1]
        assert await refused(secure, f"https://127.0.0.1:{port}/") == "it could not be fetched"
        await asyncio.gather(*closed, return_exceptions=True)
