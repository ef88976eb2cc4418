"""CORS: which pages may use the server from a browser and read its responses.

Browsers send a preflight unless a form could send the same request; without API keys, such requests from
other origins are refused here. Clients other than browsers send no `Origin` and are not affected.
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
_VARY = (b"vary", b"Origin")

_Fields = list[tuple[str, str]]


class Origin(NamedTuple):
    scheme: str
    host: str
    port: int | None


def parse_origin(text: str) -> Origin | None:
    """Parse `SCHEME://HOST` or `SCHEME://HOST:PORT`; None for anything else, including `null`."""
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
    refuses_strangers: bool  # there are no API keys to do it

    def admits(self, text: str) -> bool:
        if self.allows_any:
            return True
        origin = parse_origin(text)
        return origin is not None and (origin in self.origins or (self.allows_local and _is_local(origin)))

    def gives_credentials(self, text: str) -> bool:
        """Whether an admitted page may send cookies: it was named, or is of this machine."""
        origin = parse_origin(text)
        return self.credentials or (origin is not None and _is_local(origin))


def _is_local(origin: Origin) -> bool:
    return origin.scheme in _PORTS and is_local_name(origin.host)


def cors_policy(server: ServerSettings) -> CorsPolicy:
    """Build the policy. Raises CorralError for invalid origins, and for credentials without explicit
    origins."""
    has_keys = bool(server.api_keys or server.api_key_file)
    names = server.cors_origins or ((ANY,) if has_keys else (_LOCAL,))
    if server.cors_credentials and (ANY in names or not server.cors_origins):
        raise CorralError("--cors-credentials requires --cors-origins with explicit origins, not *")
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
    """ASGI middleware around all responses, including errors.

    starlette's `CORSMiddleware` takes the first of two origins, tells pages of other origins what is
    allowed, and adds a coroutine for every event of a stream.
    """

    def __init__(self, app: ASGIApp, policy: CorsPolicy) -> None:
        self._app = app
        self._policy = policy

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        if b"origin" in dict(scope["headers"]):
            return self._answer_page(scope, receive, send)
        return self._app(scope, receive, _adding_vary(send))

    async def _answer_page(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Imported here because they import anyio, which would delay the first response at startup.
        from starlette.datastructures import Headers
        from starlette.responses import Response

        headers = Headers(scope=scope)
        origin = ", ".join(headers.getlist("origin"))  # more than one is invalid
        is_admitted = self._policy.admits(origin)
        fields = self._fields(origin) if is_admitted else []
        if scope["method"] == "OPTIONS" and f"{_ASKED}method" in headers:
            fields += [
                *(self._preflight_fields(origin, headers) if is_admitted else ()),
                ("vary", _PREFLIGHT_VARY),
            ]
            await Response()(scope, receive, _adding(send, fields))
            return
        fields += [*([(_EXPOSE, "X-Request-Id, Retry-After")] if is_admitted else ()), ("vary", "Origin")]
        send = _adding(send, fields)
        if is_admitted or self._lets_pass(scope["method"], origin, headers):
            await self._app(scope, receive, send)
            return
        error = Forbidden(
            f"pages of '{origin[:_MAX_SHOWN]}' may not use this server; to allow them, start it with "
            "--cors-origins and this origin, or with an --api-key"
        )
        await ErrorAnswer(error)(scope, receive, send)

    def _lets_pass(self, method: str, origin: str, headers: Headers) -> bool:
        """Whether a request may run although its page must not read the response."""
        return not self._policy.refuses_strangers or method in _HARMLESS or _is_own(origin, headers)

    def _fields(self, origin: str) -> _Fields:
        has_credentials = self._policy.gives_credentials(origin)
        credentials = [("access-control-allow-credentials", "true")] if has_credentials else []
        return [("access-control-allow-origin", origin), *credentials]

    def _preflight_fields(self, origin: str, headers: Headers) -> _Fields:
        has_credentials = self._policy.gives_credentials(origin)
        asked_method, asked_headers = headers[f"{_ASKED}method"], headers.get(f"{_ASKED}headers", "")
        is_private = headers.get(f"{_ASKED}private-network") == "true"
        return [
            ("access-control-allow-methods", _allowed(self._policy.methods, asked_method, has_credentials)),
            ("access-control-allow-headers", _allowed(self._policy.headers, asked_headers, has_credentials)),
            ("access-control-max-age", str(_MAX_AGE_S)),
            *([("access-control-allow-private-network", "true")] if is_private else ()),
        ]


def _allowed(names: tuple[str, ...], asked: str, has_credentials: bool) -> str:
    """Return the allowed names. With credentials `*` is taken literally, so echo the requested names."""
    return asked if asked and ANY in names and has_credentials else ", ".join(names)


def _adding_vary(send: Send) -> Send:
    def answer(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), _VARY]
        return send(message)

    return answer


def _adding(send: Send, fields: _Fields) -> Send:
    """Add headers to the response without a coroutine per message."""
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
            f"--cors-origins: '{text}' is not an origin; use https://example.com, localhost for pages "
            "of this machine, or * for any"
        )
    return origin


def _is_own(origin: str, headers: Headers) -> bool:
    """Whether the page was served by this server. The scheme may differ, since a proxy may add TLS."""
    page, host = parse_origin(origin), parse_host(", ".join(headers.getlist("host")))
    if page is None or host is None:
        return False
    port = _PORTS.get(page.scheme) if host.port is None else host.port
    return (page.host, page.port) == (host.name, port)
