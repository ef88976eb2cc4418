"""Where exceptions of the application end: each becomes the response of its handler.

Starlette's own middlewares do the same, with two coroutines for every message of a response.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Handler = Callable[[Scope, Exception], Response]


class App(Starlette):
    """Starlette's application with these boundaries; handlers are found by the class of an exception."""

    def __init__(self, routes: Sequence[BaseRoute], handlers: Mapping[type[Exception], Handler]) -> None:
        super().__init__(routes=routes)
        self._handlers = handlers

    def build_middleware_stack(self) -> ASGIApp:
        known = dict(self._handlers)
        on_bug = known.pop(Exception)
        app: ASGIApp = KnownErrors(self.router.middleware_stack, known)
        for factory, args, kwargs in reversed(self.user_middleware):
            app = factory(app, *args, **kwargs)
        return Bugs(app, on_bug)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:  # type: ignore[override]
        scope["app"] = self
        if self.middleware_stack is None:
            self.middleware_stack = self.build_middleware_stack()
        return self.middleware_stack(scope, receive, send)


class KnownErrors:
    """ASGI middleware next to the routes."""

    def __init__(self, app: ASGIApp, handlers: Mapping[type[Exception], Handler]) -> None:
        self._app = app
        self._handlers = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = _Watch(send)
        try:
            await self._app(scope, receive, watch.send)
        except Exception as error:
            handler = next((self._handlers[c] for c in type(error).__mro__ if c in self._handlers), None)
            if handler is None:
                raise
            if watch.has_started:
                raise RuntimeError("an error after the response had begun") from error
            response = handler(scope, error)
            await response(scope, receive, send)
            error.__traceback__ = None  # some exceptions are raised again


class Bugs:
    """ASGI middleware around all others: the handler logs the exception, which is raised again."""

    def __init__(self, app: ASGIApp, handler: Handler) -> None:
        self._app = app
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = _Watch(send)
        try:
            await self._app(scope, receive, watch.send)
        except Exception as error:
            response = self._handler(scope, error)
            if not watch.has_started:
                await response(scope, receive, send)
            raise


class _Watch:
    __slots__ = ("_send", "has_started")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_started = False

    def send(self, message: Message) -> Awaitable[None]:
        self.has_started = True
        return self._send(message)
