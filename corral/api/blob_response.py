"""Send a state in pieces as the client reads them, and release it when the client has disconnected."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from corral.api.user_content import USER_CONTENT


class BlobResponse(StreamingResponse):
    def __init__(
        self, pieces: Iterator[bytes], n_bytes: int, media_type: str, on_end: Callable[[], Awaitable[None]]
    ) -> None:
        """`on_end` is called after the last read, also if the client disconnects."""
        headers = {**USER_CONTENT, "content-length": str(n_bytes)}
        super().__init__(_iterate(pieces), media_type=media_type, headers=headers)
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._on_end()


async def _iterate(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yield pieces on the event loop: each is a short read from memory."""
    for piece in pieces:
        yield piece
