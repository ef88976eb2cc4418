"""Fetch images and pages that clients name by http(s) URLs, without access to private networks (SSRF).

A name is resolved once, all its addresses must be public, and the connection goes to the first of them,
with Host and certificate of the name. Each redirect is checked like the first URL. Errors contain nothing
about resolved addresses or responses.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

import anyio
import httpx

from corral import __version__
from corral.media.decoded import MAX_BYTES, BadMedia, too_large

IPAddress = IPv4Address | IPv6Address

MAX_REDIRECTS = 3
MAX_PAGE_BYTES = 2 << 20
MAX_PIECES = 1 << 16  # packets of MAX_BYTES are fewer; a body of tiny chunks would take much time

_HEADERS = {
    "Accept": "*/*",
    "Accept-Encoding": "identity",
    "Connection": "close",
    "User-Agent": f"corral/{__version__}",
}
_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(r"(?:[a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}\.?")

_UNICAST = IPv6Network("2000::/3")  # outside are embedded IPv4, local and reserved addresses
_NAT64 = IPv6Network("64:ff9b::/96")
_SPECIAL = [
    ip_network("168.63.129.16/32"),  # the host of Azure VMs
    ip_network("192.0.0.0/24"),  # protocol assignments, and the metadata of Oracle VMs
    ip_network("192.88.99.0/24"),  # 6to4 relays
    ip_network("2001::/23"),  # protocol assignments, Teredo
    ip_network("2002::/16"),  # 6to4
    ip_network("3fff::/20"),  # documentation
]


def is_public(address: IPAddress) -> bool:
    """Whether the address is the same host everywhere on the Internet, and not near this machine."""
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return False
        if address in _NAT64:
            return is_public(IPv4Address(int(address) & 0xFFFF_FFFF))
        if address not in _UNICAST:
            return False
    is_special = address.is_multicast or any(address in network for network in _SPECIAL)
    return address.is_global and not is_special


@dataclass(frozen=True, slots=True)
class Fetched:
    body: bytes
    content_type: str


class RemoteMedia:
    def __init__(
        self,
        deadline_s: float = 20.0,
        is_allowed: Callable[[IPAddress], bool] = is_public,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._deadline_s = deadline_s
        self._is_allowed = is_allowed
        self._tls = tls or httpx.create_ssl_context(trust_env=False)

    async def fetch(self, url: str) -> bytes:
        """Fetch the whole body before the deadline."""
        return (await self._fetch(url, MAX_BYTES)).body

    async def fetch_page(self, url: str) -> Fetched:
        """Fetch a text that is to be read."""
        return await self._fetch(url, MAX_PAGE_BYTES)

    async def _fetch(self, url: str, max_bytes: int) -> Fetched:
        try:
            with anyio.fail_after(self._deadline_s):
                return await self._follow(_parse(url), max_bytes)
        except TimeoutError:
            raise BadMedia("fetching it took too long") from None
        except (httpx.HTTPError, OSError):
            raise BadMedia("it could not be fetched") from None

    async def _follow(self, url: httpx.URL, max_bytes: int) -> Fetched:
        for _ in range(1 + MAX_REDIRECTS):
            answer = await self._get(url, max_bytes)
            if isinstance(answer, Fetched):
                return answer
            url = answer
        raise BadMedia(f"it redirects more than {MAX_REDIRECTS} times")

    async def _get(self, url: httpx.URL, max_bytes: int) -> Fetched | httpx.URL:
        """Return the answer, or the URL of a redirect. Connections are not reused: the certificate is for one
        name."""
        request = _dial(url, await self._resolve(url.raw_host.decode()))
        async with httpx.AsyncHTTPTransport(verify=self._tls, trust_env=False) as transport:
            response = await transport.handle_async_request(request)
            async with contextlib.aclosing(response):
                if response.has_redirect_location:
                    return _redirect(url, response.headers["Location"])
                body = await _read(response, max_bytes)
                return Fetched(body, response.headers.get("Content-Type", ""))

    async def _resolve(self, host: str) -> IPAddress:
        """Return the address to connect to. One disallowed address refuses them all."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        addresses = [ip_address(place[0]) for *_, place in found]
        if not all(self._is_allowed(address) for address in addresses):
            raise BadMedia("its address is not public")
        return addresses[0]


def _parse(text: str, base: httpx.URL | None = None) -> httpx.URL:
    """Parse a URL that may be resolved, relative to `base` if given."""
    try:
        url = base.join(text) if base else httpx.URL(text)
    except (httpx.InvalidURL, ValueError):
        raise BadMedia("its URL is not valid") from None
    if url.scheme not in _PORTS:
        raise BadMedia("only http and https URLs are fetched")
    if url.userinfo:
        raise BadMedia("its URL must not contain a user name or password")
    port = _PORTS[url.scheme] if url.port is None else url.port
    if not _is_host(url.raw_host.decode()) or not 0 < port < 65536:
        raise BadMedia("its URL is not valid")
    return url


def _is_host(host: str) -> bool:
    """Whether it is a name, or an address without a zone. The URL parser has validated IPv6 addresses."""
    if ":" in host:
        return "%" not in host
    return len(host) < 254 and _NAME.fullmatch(host) is not None


def _redirect(url: httpx.URL, location: str) -> httpx.URL:
    target = _parse(location, url)
    if url.scheme == "https" and target.scheme == "http":
        raise BadMedia("it redirects from https to http")
    return target


def _dial(url: httpx.URL, address: IPAddress) -> httpx.Request:
    """Build a request to the address for what the URL names."""
    return httpx.Request(
        "GET",
        url.copy_with(host=str(address)),
        headers={"Host": url.netloc.decode(), **_HEADERS},
        extensions={"sni_hostname": url.raw_host.decode().removesuffix(".")},
    )


async def _read(response: httpx.Response, max_bytes: int) -> bytes:
    if response.status_code != 200:
        raise BadMedia(f"status {response.status_code}")
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise BadMedia("the server sent it compressed, although not requested")
    if int(response.headers.get("Content-Length", 0)) > max_bytes:
        raise too_large(max_bytes)
    body = bytearray()
    n_pieces = 0
    async for piece in response.aiter_raw():
        body += piece
        n_pieces += 1
        if len(body) > max_bytes:
            raise too_large(max_bytes)
        if n_pieces > MAX_PIECES:
            raise BadMedia("the server sent it in too many small chunks")
    return bytes(body)
