"""Render long answers in pieces in a thread, as fast as the client reads them.

So they are never whole in memory, and slow readers do not delay other clients.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from corral.api.body import JsonResponse
from corral.api.json_encode import PIECE_BYTES, encode_pieces
from corral.api.streamed_response import StreamedResponse
from corral.core.client import Client
from corral.generate.pools import Pools
from corral.telemetry.record import RequestRecord

LONG_BYTES = 2 * PIECE_BYTES  # of an answer that is not rendered on the event loop


async def respond_json(
    pools: Pools,
    record: RequestRecord,
    render: Callable[[], Any],
    n_bytes: int,
    headers: Mapping[str, str] | None = None,
    on_end: Callable[[], None] = lambda: None,
) -> Response:
    """Answer with what `render` returns, about `n_bytes` long. `record`: of the request. `on_end`: frees
    large values."""
    if n_bytes < LONG_BYTES:
        return JsonResponse(render(), headers=headers)
    record.is_large = True
    pieces = _pieces(render, on_end)
    first = await pools.continue_text(
        record.client, next, pieces, None
    )  # an error until now is an ordinary answer
    return PieceResponse(pools, record.client, first, pieces, headers)


class PieceResponse(StreamedResponse):
    """Sends pieces as the client reads them. Its length is known only at the end."""

    def __init__(
        self,
        pools: Pools,
        client: Client,
        first: bytes | None,
        pieces: Generator[bytes, None, None],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(JsonResponse.media_type, headers)
        self._pools = pools
        self._client = client
        self._first = first
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._pools.continue_text(
                self._client, self._pieces.close
            )  # what is long takes a while to be freed

    async def _produce(self, send: Send) -> None:
        piece = self._first
        while piece is not None:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            piece = await self._pools.continue_text(self._client, next, self._pieces, None)
        await send({"type": "http.response.body", "body": b""})


def _pieces(render: Callable[[], Any], on_end: Callable[[], None]) -> Generator[bytes, None, None]:
    try:
        yield from encode_pieces(render())
    finally:
        on_end()
