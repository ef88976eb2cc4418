"""Which pages may use the server from a browser, and read what it answers.

Browsers ask first (a preflight) unless a request could be a form's; such ones are refused here where no key
protects the server. Clients that are no browsers have no origin, and nothing changes for them.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corral.api.error import ErrorAnswer
from corral.core.errors import CorralError, Forbidden
from corral.core.settings import ServerSettings
from corral.server.hosts import ANY, is_local_name, parse_host

if TYPE_CHECKING:
    from starlette.datastructures import Headers

_LOCAL = "localhost"
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]{0,30})://([^/?#@\\\s]{1,300})")
_PORTS = {"http": 80, "https": 443}
_HARMLESS = ("GET", "HEAD", "OPTIONS")
_MAX_AGE_S = 600
_MAX_SHOWN = 100
_ASKED = "access-control-request-"
_PREFLIGHT_VARY = "Origin, Access-Control-Request-Method, Access-Control-Request-Headers"
_EXPOSE = "access-control-expose-headers"
_QUEUE = b"x-queue-"

_Fields = list[tuple[str, str]]


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
    """ASGI middleware, around everything that answers, errors too.

    Not starlette's: that one takes the first of two origins, tells pages of other origins what is allowed,
    and runs a coroutine of its own for every event of a stream.
    """

    def __init__(self, app: ASGIApp, policy: CorsPolicy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Not above: they import anyio, which would delay the first answer of a start.
        from starlette.datastructures import Headers
        from starlette.responses import Response

        headers = Headers(scope=scope)
        has_origin = "origin" in headers
        origin = ", ".join(headers.getlist("origin"))  # more than one is not allowed
        is_admitted = has_origin and self._policy.admits(origin)
        fields = self._fields(origin) if is_admitted else []
        if has_origin and scope["method"] == "OPTIONS" and f"{_ASKED}method" in headers:
            fields += [*(self._preflight_fields(headers) if is_admitted else ()), ("vary", _PREFLIGHT_VARY)]
            await Response()(scope, receive, _adding(send, fields))
            return
        fields += [*([(_EXPOSE, "X-Request-Id, Retry-After")] if is_admitted else ()), ("vary", "Origin")]
        send = _adding(send, fields)
        if not has_origin or is_admitted or self._lets_pass(scope["method"], origin, headers):
            await self._app(scope, receive, send)
            return
        error = Forbidden(
            f"pages of '{origin[:_MAX_SHOWN]}' may not use this server; "
            "if they should, start it with --cors-origins and this origin, or with an --api-key"
        )
        await ErrorAnswer(error)(scope, receive, send)

    def _lets_pass(self, method: str, origin: str, headers: Headers) -> bool:
        """Whether a request does no harm although its page may not read the answer."""
        return not self._policy.refuses_strangers or method in _HARMLESS or _is_own(origin, headers)

    def _fields(self, origin: str) -> _Fields:
        credentials = [("access-control-allow-credentials", "true")] if self._policy.credentials else []
        return [("access-control-allow-origin", origin), *credentials]

    def _preflight_fields(self, headers: Headers) -> _Fields:
        asked_method, asked_headers = headers[f"{_ASKED}method"], headers.get(f"{_ASKED}headers", "")
        is_private = headers.get(f"{_ASKED}private-network") == "true"
        return [
            ("access-control-allow-methods", self._allowed(self._policy.methods, asked_method)),
            ("access-control-allow-headers", self._allowed(self._policy.headers, asked_headers)),
            ("access-control-max-age", str(_MAX_AGE_S)),
            *([("access-control-allow-private-network", "true")] if is_private else ()),
        ]

    def _allowed(self, names: tuple[str, ...], asked: str) -> str:
        """With credentials `*` is taken literally, so echo the requested names."""
        return asked if ANY in names and self._policy.credentials else ", ".join(names)


def _adding(send: Send, fields: _Fields) -> Send:
    """Add header fields to the answer, with no coroutine between a stream and its socket."""
    added = [(name.encode(), value.encode("latin-1")) for name, value in fields]
    exposes = any(name == _EXPOSE for name, _ in fields)

    def answer(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            queue = [(_EXPOSE.encode(), name) for name, _ in headers if exposes and name.startswith(_QUEUE)]
            message["headers"] = [*headers, *added, *queue]
        return send(message)

    return answer


def _read_origin(text: str) -> Origin:
    origin = parse_origin(text.removesuffix("/"))
    if origin is None:
        raise CorralError(
            f"--cors-origins: '{text}' is no origin; give it as https://example.com, localhost for pages of "
            "this machine, or * for any"
        )
    return origin


def _is_own(origin: str, headers: Headers) -> bool:
    """Whether the page came from the server itself. The scheme may differ: a proxy may add TLS."""
    page, host = parse_origin(origin), parse_host(", ".join(headers.getlist("host")))
    if page is None or host is None:
        return False
    port = _PORTS.get(page.scheme) if host.port is None else host.port
    return (page.host, page.port) == (host.name, port)
