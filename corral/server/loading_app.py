"""Respond to requests before the application is imported and built.

Only `/health` is answered here, as the application would answer it. All other requests wait for the
application, which alone checks keys and limits and serves pages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from corral.api.error import ErrorAnswer
from corral.core.result import Loading
from corral.core.still_loading import still_loading

_HEALTH = ("/health", "/v1/health")
_READING = ("GET", "HEAD")


class LoadingApp:
    """ASGI application that delegates to another one after `open`."""

    def __init__(self, loading: Callable[[], Loading | None] = Loading) -> None:
        """`loading`: returns the progress of the start; None: requests for the health wait, too."""
        self._loading = loading
        self._application: asyncio.Future[ASGIApp] = asyncio.get_running_loop().create_future()
        self._answer: ASGIApp = self._answer_early

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self._answer(scope, receive, send)

    def open(self, application: ASGIApp) -> None:
        """Delegate to the application, including requests that wait. Only the first call has an effect."""
        if not self._application.done():
            self._application.set_result(application)
            self._answer = application

    def give_up(self) -> None:
        """Answer all requests, including waiting ones, as loading: there will be no application."""
        self.open(self._answer_loading)

    async def _answer_early(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_health = scope["type"] == "http" and scope["path"] in _HEALTH and scope["method"] in _READING
        if is_health and self._loading() is not None:
            await self._answer_loading(scope, receive, send)
        else:
            application = await asyncio.shield(self._application)
            await application(scope, receive, send)

    async def _answer_loading(self, scope: Scope, receive: Receive, send: Send) -> None:
        await ErrorAnswer(still_loading(self._loading() or Loading()))(scope, receive, send)
