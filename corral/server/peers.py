"""Restrict clients by address when the server listens beyond this machine without an API key.

Only the address of the connected socket counts. `X-Forwarded-For` is read afterwards and changes only the
logged address: any client can send it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from corral.api.error import ErrorAnswer
from corral.core.address import is_private
from corral.core.errors import Forbidden
from corral.core.settings import ServerSettings
from corral.server.listen import Listener, Reach

_REFUSED = ErrorAnswer(
    Forbidden(
        "this server has no API key, so it serves only clients with a loopback or private address; "
        "start it with --api-key and send the key, or with --allow-unauthenticated to serve all clients"
    )
)
_FORWARDED = frozenset({b"x-forwarded-for", b"x-forwarded-proto"})
_log = logging.getLogger("corral")


def is_private_only(server: ServerSettings, reach: Reach) -> bool:
    """Whether clients with other addresses are refused."""
    has_keys = bool(server.api_keys or server.api_key_file)
    return reach is Reach.PUBLIC and not has_keys and not server.allow_unauthenticated


def warn_without_key(server: ServerSettings, listener: Listener) -> None:
    """Log who can use a server that listens beyond this machine without an API key."""
    fields = {"address": listener.address}
    if is_private_only(server, listener.reach):
        _log.warning(
            "%(address)s has no API key: only clients with a loopback or private address are served, "
            "all others get a 403; set --api-key to serve them, or --allow-unauthenticated to serve "
            "all clients",
            fields,
        )
    elif listener.reach is Reach.PUBLIC and not (server.api_keys or server.api_key_file):
        _log.warning(
            "%(address)s has no API key: all clients that can reach it can use it (--allow-unauthenticated)",
            fields,
        )


def guard_peers(app: ASGIApp, server: ServerSettings, reach: Reach) -> ASGIApp:
    """Return the application for allowed clients only, with the client address that a trusted proxy
    reports."""
    trusted = os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1")  # as uvicorn reads it
    forwarded = Forwarded(app, trusted)
    return PeerControl(forwarded) if is_private_only(server, reach) else forwarded


class PeerControl:
    """ASGI middleware: answer all requests from public addresses with 403."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        is_refused = scope["type"] == "http" and not _is_near(scope)
        return (_REFUSED if is_refused else self._app)(scope, receive, send)


def _is_near(scope: Scope) -> bool:
    """Whether the client is in a private network or on this machine: then both ends of a connection to one
    of its public addresses have this address."""
    client, own = scope.get("client"), scope.get("server") or ("",)
    return client is not None and (is_private(str(client[0])) or client[0] == own[0])


class Forwarded:
    """ASGI middleware: take what a trusted proxy says about its client, if it says anything."""

    def __init__(self, app: ASGIApp, trusted: str) -> None:
        self._app = app
        self._proxied: ASGIApp = ProxyHeadersMiddleware(app, trusted)  # type: ignore[arg-type, assignment]

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        says = not _FORWARDED.isdisjoint(dict(scope.get("headers", ())))
        return (self._proxied if says else self._app)(scope, receive, send)
