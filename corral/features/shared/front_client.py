"""Requests to the other servers with the same storage, with the key of the client that they are made for."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Sequence

import httpx
from starlette.types import Scope

from corral.api.front_id import ASKS, PASSED, YES, LiveId
from corral.core.errors import CorralError, Unavailable
from corral.core.settings import ServerSettings
from corral.storage.front_registry import FrontInfo, FrontRegistry

Headers = list[tuple[bytes, bytes]]
_UNIX = "unix:"
_ASK_S = 2.0
_HOP = ("connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "expect")
_OWN = ("host", "content-length", "origin", ASKS, PASSED)  # CORS was the business of the first server


class FrontClient:
    """Mutable: has connections to the others."""

    def __init__(self, registry: FrontRegistry, server: ServerSettings) -> None:
        self._registry = registry
        self._prefix = server.api_prefix
        self._tls = _trust(server.ssl_cert_file) if server.ssl_cert_file else False
        self._clients: dict[str, httpx.AsyncClient] = {}

    async def others(self) -> list[FrontInfo]:
        return await asyncio.to_thread(self._registry.others)

    async def find(self, scope: Scope, live: LiveId) -> FrontInfo | None:
        """Return the server that has it. Raises Unavailable if one that may have it does not respond."""
        fronts = await self.others()
        headers = [*_headers(scope), (ASKS.encode(), live.encode().encode())]
        target = scope["raw_path"].decode("latin-1")
        statuses = await asyncio.gather(*(self._ask(front, target, headers) for front in fronts))
        found = [front for front, status in zip(fronts, statuses, strict=True) if status == YES]
        if not found and None in statuses:
            raise _silent()
        return found[0] if found else None

    async def tell_all(
        self, scope: Scope, method: str, target: str, body: bytes = b""
    ) -> Sequence[httpx.Response]:
        """Send a request to all others; returns the answers of those that respond soon."""
        headers = [*_headers(scope), (PASSED.encode(), self._registry.id.encode())]
        fronts = await self.others()
        sent = (self._send(front, method, target, headers, body) for front in fronts)
        return [answer for answer in await asyncio.gather(*sent) if answer is not None]

    async def open(self, front: FrontInfo, scope: Scope, body: bytes) -> httpx.Response:
        """Pass a request on; the caller reads the answer and closes it. Raises Unavailable."""
        target = scope["raw_path"].decode("latin-1")
        if scope["query_string"]:
            target += "?" + scope["query_string"].decode("latin-1")
        headers = [*_headers(scope), (PASSED.encode(), self._registry.id.encode())]
        request = self._request(front, scope["method"], target, headers, body, None)
        try:
            return await self._client(front).send(request, stream=True)
        except httpx.HTTPError:
            raise _silent() from None

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()

    async def _ask(self, front: FrontInfo, target: str, headers: Headers) -> int | None:
        answer = await self._send(front, "GET", target, headers)
        return answer.status_code if answer is not None else None

    async def _send(
        self, front: FrontInfo, method: str, target: str, headers: Headers, body: bytes = b""
    ) -> httpx.Response | None:
        request = self._request(front, method, target, headers, body, _ASK_S)
        try:
            return await self._client(front).send(request)
        except httpx.HTTPError:
            return None

    def _request(
        self,
        front: FrontInfo,
        method: str,
        target: str,
        headers: Headers,
        body: bytes,
        timeout_s: float | None,
    ) -> httpx.Request:
        base = "http://localhost" if front.url.startswith(_UNIX) else front.url
        timeout = httpx.Timeout(_ASK_S, read=timeout_s)
        return httpx.Request(
            method,
            base + self._prefix + target,
            headers=headers,
            content=body,
            extensions={"timeout": timeout.as_dict()},
        )

    def _client(self, front: FrontInfo) -> httpx.AsyncClient:
        if front.url not in self._clients:
            path = front.url.removeprefix(_UNIX) if front.url.startswith(_UNIX) else None
            limits = httpx.Limits(max_connections=None)
            transport = httpx.AsyncHTTPTransport(verify=self._tls, uds=path, limits=limits)
            self._clients[front.url] = httpx.AsyncClient(transport=transport)
        return self._clients[front.url]


async def read_parts(answer: httpx.Response) -> AsyncGenerator[bytes]:
    """Yield the body of an answer as it comes. Raises ConnectionError if it is cut."""
    try:
        async for part in answer.aiter_raw():
            yield part
    except httpx.HTTPError:
        raise ConnectionError from None


def answer_headers(answer: httpx.Response) -> Headers:
    raw = [(name.lower(), value) for name, value in answer.headers.raw]
    return [(name, value) for name, value in raw if name.decode("latin-1") not in _HOP]


def shared_url(server: ServerSettings, address: str) -> str:
    """Return where other servers reach this one. Raises CorralError if only the operator can know that."""
    if server.shared_url:
        return server.shared_url.rstrip("/")
    is_any = any(host in address for host in ("//0.0.0.0:", "//[::]:"))
    if is_any or server.reuse_port:
        option = "--reuse-port" if server.reuse_port else "--host"
        raise CorralError(
            f"--shared-storage: with this {option} other servers cannot know how to reach this one; set "
            "--shared-url"
        )
    return address


def _headers(scope: Scope) -> Headers:
    dropped = [name.encode() for name in (*_HOP, *_OWN)]
    return [(name, value) for name, value in scope["headers"] if name not in dropped]


def _silent() -> Unavailable:
    error = Unavailable("another server with the same storage does not respond")
    error.retry_after_s = 1
    return error


def _trust(file: str) -> ssl.SSLContext:
    """Trust the certificate that all servers have, and no other, whatever name it is for."""
    context = ssl.create_default_context(cafile=file)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
