"""Which pages may use the server from a browser, and read what it answers.

Browsers ask first (a preflight) unless a request could be a form's; such ones are refused here where no key
protects the server. Clients that are no browsers have no origin, and nothing changes for them.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corral.api.error import ErrorAnswer
from corral.core.errors import CorralError, Forbidden
from corral.core.settings import ServerSettings
from corral.server.hosts import ANY, is_local_name, parse_host

_LOCAL = "localhost"
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]{0,30})://([^/?#@\\\s]{1,300})")
_PORTS = {"http": 80, "https": 443}
_HARMLESS = ("GET", "HEAD", "OPTIONS")
_MAX_AGE_S = 600
_MAX_SHOWN = 100
_ORIGIN_HEADER = b"origin"
_ASKED_METHOD = b"access-control-request-method"
_ASKED_HEADERS = b"access-control-request-headers"
_ASKED_NETWORK = b"access-control-request-private-network"
_READ = (b"host", _ORIGIN_HEADER, _ASKED_METHOD, _ASKED_HEADERS, _ASKED_NETWORK)
_PREFLIGHT_VARY = b"Origin, Access-Control-Request-Method, Access-Control-Request-Headers"
_EXPOSE = b"access-control-expose-headers"
_EXPOSING = [(_EXPOSE, b"X-Request-Id, Retry-After")]
_QUEUE = b"x-queue-"

_Fields = list[tuple[bytes, bytes]]


class Origin(NamedTuple):
    scheme: str
    host: str
    port: int | None


def parse_origin(text: str) -> Origin | None:
    """`SCHEME://HOST`, or with a port; None for anything else, `null` too."""
    found = _ORIGIN.fullmatch(text.lower())
    host = parse_host(found[2]) if found is not None else None
    if found is None or host is None:
        return None
    return Origin(found[1], host.name, _PORTS.get(found[1]) if host.port is None else host.port)


@dataclass(frozen=True)
class CorsPolicy:
    origins: frozenset[Origin]
    allows_any: bool
    allows_local: bool
    methods: tuple[str, ...]
    headers: tuple[str, ...]
    credentials: bool
    refuses_strangers: bool  # there is no key that would

    def admits(self, text: str) -> bool:
        """Whether pages of that origin may read answers."""
        if self.allows_any:
            return True
        origin = parse_origin(text)
        if origin is None:
            return False
        is_local = origin.scheme in _PORTS and is_local_name(origin.host)
        return origin in self.origins or (self.allows_local and is_local)


def cors_policy(server: ServerSettings) -> CorsPolicy:
    """Raises CorralError for origins that cannot be, or must not be."""
    has_keys = bool(server.api_keys or server.api_key_file)
    names = server.cors_origins or ((ANY,) if has_keys else (_LOCAL,))
    if server.cors_credentials and (ANY in names or not server.cors_origins):
        raise CorralError(
            "--cors-credentials needs --cors-origins with every origin that may send them, not *"
        )
    return CorsPolicy(
        origins=frozenset(_read_origin(name) for name in names if name not in (ANY, _LOCAL)),
        allows_any=ANY in names,
        allows_local=_LOCAL in names,
        methods=tuple(method.upper() for method in server.cors_methods),
        headers=server.cors_headers,
        credentials=server.cors_credentials,
        refuses_strangers=not has_keys,
    )


class Cors:
    """ASGI middleware, around everything that answers, errors too."""

    def __init__(self, app: ASGIApp, policy: CorsPolicy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = _joined(scope)
        origin = headers.get(_ORIGIN_HEADER)
        is_admitted = origin is not None and self._policy.admits(origin.decode("latin-1"))
        if origin is not None and scope["method"] == "OPTIONS" and _ASKED_METHOD in headers:
            fields = [*self._fields(origin), *self._preflight_fields(headers)] if is_admitted else []
            send = _Answer(send, [*fields, (b"vary", _PREFLIGHT_VARY)]).send
            await _send_nothing(send)
            return
        fields = [*self._fields(origin), *_EXPOSING] if origin is not None and is_admitted else []
        send = _Answer(send, [*fields, (b"vary", b"Origin")]).send
        if origin is None or is_admitted or self._lets_pass(scope["method"], origin, headers):
            await self._app(scope, receive, send)
            return
        error = Forbidden(
            f"pages of '{origin.decode('latin-1')[:_MAX_SHOWN]}' may not use this server; "
            "if they should, start it with --cors-origins and this origin, or with an --api-key"
        )
        await ErrorAnswer(error)(scope, receive, send)

    def _lets_pass(self, method: str, origin: bytes, headers: dict[bytes, bytes]) -> bool:
        """Whether a request does no harm although its page may not read the answer."""
        return not self._policy.refuses_strangers or method in _HARMLESS or _is_own(origin, headers)

    def _fields(self, origin: bytes) -> _Fields:
        fields = [(b"access-control-allow-origin", origin)]
        if self._policy.credentials:
            fields.append((b"access-control-allow-credentials", b"true"))
        return fields

    def _preflight_fields(self, headers: dict[bytes, bytes]) -> _Fields:
        asked_headers = headers.get(_ASKED_HEADERS, b"")
        fields = [
            (b"access-control-allow-methods", self._allowed(self._policy.methods, headers[_ASKED_METHOD])),
            (b"access-control-allow-headers", self._allowed(self._policy.headers, asked_headers)),
            (b"access-control-max-age", b"%d" % _MAX_AGE_S),
        ]
        if headers.get(_ASKED_NETWORK) == b"true":
            fields.append((b"access-control-allow-private-network", b"true"))
        return fields

    def _allowed(self, names: tuple[str, ...], asked: bytes) -> bytes:
        """With credentials a star is no more than a star, so that what was asked for has to be named."""
        return asked if ANY in names and self._policy.credentials else ", ".join(names).encode()


class _Answer:
    """Adds header fields. No coroutine of its own between a stream and its socket."""

    def __init__(self, send: Send, fields: _Fields) -> None:
        self._send = send
        self._fields = fields

    def send(self, message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            queue = [(_EXPOSE, name) for name, _ in headers if name.startswith(_QUEUE)]
            is_exposing = any(name == _EXPOSE for name, _ in self._fields)
            message["headers"] = [*headers, *self._fields, *(queue if is_exposing else ())]
        return self._send(message)


async def _send_nothing(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})


def _read_origin(text: str) -> Origin:
    origin = parse_origin(text.removesuffix("/"))
    if origin is None:
        raise CorralError(
            f"--cors-origins: '{text}' is no origin; give it as https://example.com, localhost for pages of "
            "this machine, or * for any"
        )
    return origin


def _is_own(origin: bytes, headers: dict[bytes, bytes]) -> bool:
    """Whether the page came from the server itself. What a proxy in front speaks does not matter."""
    page, host = (
        parse_origin(origin.decode("latin-1")),
        parse_host(headers.get(b"host", b"").decode("latin-1")),
    )
    if page is None or host is None:
        return False
    port = _PORTS.get(page.scheme) if host.port is None else host.port
    return (page.host, page.port) == (host.name, port)


def _joined(scope: Scope) -> dict[bytes, bytes]:
    """What the middleware reads of a request; more than one of a kind is none that is allowed."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in _READ:
            found[name] = b"%b, %b" % (found[name], value) if name in found else value
    return found
