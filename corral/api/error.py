"""Errors as answers, in llama-server's shape. Knows no framework: some are needed before one is imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from corral.core.errors import CorralError, Unavailable
from corral.core.result import Loading

_MEDIA_TYPE = b"application/json; charset=utf-8"


def still_loading(loading: Loading) -> Unavailable:
    """As llama-server answers, with the stage of the start and how far it is."""
    progress = round(loading.progress, 3)
    return Unavailable("Loading model", stage=loading.stage.value, progress=progress, detail=loading.detail)


def render_error(error: CorralError) -> dict[str, Any]:
    return {"error": {"code": error.status, "message": error.message, "type": error.type, **error.details}}


class ErrorAnswer:
    """An ASGI application that gives every request the same answer."""

    def __init__(self, error: CorralError, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        self.status = error.status
        self.body = msgspec.json.encode(render_error(error))
        self.headers = [
            *headers,
            (b"content-length", b"%d" % len(self.body)),
            (b"content-type", _MEDIA_TYPE),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        await send({"type": "http.response.body", "body": self.body})
