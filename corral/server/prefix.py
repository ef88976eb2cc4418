"""Serve all paths under a prefix (`--api-prefix`), as behind a proxy that does not remove it."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from corral.api.error import ErrorAnswer
from corral.core.errors import NotFound

_UNKNOWN = ErrorAnswer(NotFound("File Not Found"))


def under_prefix(app: ASGIApp, prefix: str) -> ASGIApp:
    return PrefixRemoval(app, prefix) if prefix else app


class PrefixRemoval:
    """ASGI middleware: remove the prefix from paths, and answer all others with 404."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        prefix = self._prefix
        if scope["type"] == "http":
            if scope["path"] == prefix:  # pages have relative links
                # Imported here because it imports anyio, which would delay the first response at startup.
                from starlette.responses import RedirectResponse

                await RedirectResponse(f"{prefix}/")(scope, receive, send)
                return
            if not scope["path"].startswith(f"{prefix}/"):
                await _UNKNOWN(scope, receive, send)
                return
            raw = scope["raw_path"].removeprefix(prefix.encode())
            scope.update(path=scope["path"].removeprefix(prefix), raw_path=raw)  # observers read it, too
        await self._app(scope, receive, send)
