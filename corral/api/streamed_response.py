"""A response whose body is made while the client reads it, and no longer."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from corral.generate.disconnect import ClientGone, receive_nothing, run_for_client

UNBUFFERED = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]  # by proxies


class StreamedResponse(Response):
    """`_produce` sends the body, and is cancelled if the client disconnects."""

    status_code = 200
    background = None

    def __init__(self, media_type: str, headers: Mapping[str, str] | None = None) -> None:
        more = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        self.raw_headers = [(b"content-type", media_type.encode()), *more]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        with contextlib.suppress(ClientGone):
            await run_for_client(self._produce(send), receive)

    async def _produce(self, send: Send) -> None:
        raise NotImplementedError


async def send_all(response: Response, send: Send) -> None:
    """Send a response to someone who never leaves."""
    await response({"type": "http"}, receive_nothing, send)
