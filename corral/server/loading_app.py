"""In front of an application that is still being imported and built: nobody has to wait to hear that.

Only `/health` is answered here, as the application would answer it. Whatever else comes waits the moment
until there is one, so that keys, limits and pages are its business alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from corral.api.error import ErrorAnswer, still_loading
from corral.core.result import Loading

_HEALTH = ("/health", "/v1/health")


class LoadingApp:
    """ASGI. Mutable: closed until `open`, and then in nobody's way."""

    def __init__(self, loading: Callable[[], Loading] = Loading) -> None:
        """`loading` tells how far the start is."""
        self._loading = loading
        self._application: asyncio.Future[ASGIApp] = asyncio.get_running_loop().create_future()
        self._answer: ASGIApp = self._answer_early

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self._answer(scope, receive, send)

    def open(self, application: ASGIApp) -> None:
        """For those who wait too; only the first time counts."""
        if not self._application.done():
            self._application.set_result(application)
            self._answer = application

    def give_up(self) -> None:
        """There will be no application, and nobody is to wait for it."""
        self.open(self._answer_loading)

    async def _answer_early(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD") and scope["path"] in _HEALTH:
            await self._answer_loading(scope, receive, send)
        else:
            application = await asyncio.shield(self._application)
            await application(scope, receive, send)

    async def _answer_loading(self, scope: Scope, receive: Receive, send: Send) -> None:
        await ErrorAnswer(still_loading(self._loading()))(scope, receive, send)
