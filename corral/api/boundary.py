"""Where exceptions of the application end: each becomes the response of its handler.

Starlette's own middlewares do the same, with two coroutines for every message of a response.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Handler = Callable[[Scope, Exception], Response]


class BrokenAnswerError(Exception):
    """A response had begun when an error ended it; the error is in the log."""


class Boundary:
    """ASGI middleware. Handlers are found by the class of an exception; that of `Exception` logs it."""

    def __init__(self, app: ASGIApp, handlers: Mapping[type[Exception], Handler]) -> None:
        self._app = app
        self._handlers = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = _Watch(send)
        try:
            await self._app(scope, receive, watch.send)
        except BrokenAnswerError:
            raise
        except Exception as error:
            if watch.has_started:
                late = RuntimeError("an error after the response had begun")
                late.__cause__ = error
                self._handlers[Exception](scope, late)
                raise BrokenAnswerError from error
            handler = next(self._handlers[each] for each in type(error).__mro__ if each in self._handlers)
            await handler(scope, error)(scope, receive, send)
            error.__traceback__ = None  # some exceptions are raised again


class _Watch:
    __slots__ = ("_send", "has_started")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_started = False

    def send(self, message: Message) -> Awaitable[None]:
        self.has_started = True
        return self._send(message)
