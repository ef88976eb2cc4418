"""Error responses, in llama-server's format or in that of the request's API.

Uses no framework: some errors are needed before one is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from corral.api.error_shape import LLAMA_ERRORS, ErrorShape, render_error
from corral.core.errors import CorralError
from corral.generate.caller import caller_in

_MEDIA_TYPE = b"application/json; charset=utf-8"


def render_error_for(scope: Scope, error: CorralError) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Return status, body and headers of an error response."""
    return render_error_in(shape_of(scope), caller_in(scope).record.id, error)


def render_error_in(
    shape: ErrorShape, id: str, error: CorralError
) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Return the same in the format of an API. `id`: of the request."""
    headers = {"retry-after": str(error.retry_after_s)} if error.retry_after_s is not None else {}
    if shape.id_header and id:
        headers[shape.id_header.decode()] = id
    return shape.status(error), shape.render(error, id), headers


def shape_of(scope: Scope) -> ErrorShape:
    """Return the error format of a request's API; llama-server's while there is no application yet."""
    app = scope.get("app")
    shape: ErrorShape = app.table.errors(scope) if app is not None else LLAMA_ERRORS
    return shape


class ErrorAnswer:
    """ASGI application that answers every request with the same error, in the format of its API."""

    def __init__(self, error: CorralError, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        self._error = error
        self._more = headers
        self.body = msgspec.json.encode(render_error(error))
        self.headers = self._headers(self.body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        status, body, more = render_error_for(scope, self._error)
        encoded = msgspec.json.encode(body)
        headers = [*self._headers(encoded), *((k.encode(), v.encode()) for k, v in more.items())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": encoded})

    def _headers(self, body: bytes) -> list[tuple[bytes, bytes]]:
        return [*self._more, (b"content-length", b"%d" % len(body)), (b"content-type", _MEDIA_TYPE)]
