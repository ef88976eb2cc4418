"""Run what clients have left with the server."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.types import Send

from corral.api.answer_internally import Lend, answer_internally
from corral.api.error_handlers import error_response
from corral.api.error_shape import LLAMA_ERRORS
from corral.api.internal import Ask
from corral.api.route_table import RouteTable
from corral.api.streamed_response import send_all
from corral.core.errors import CorralError, NotFound
from corral.server.access import Keys
from corral.server.record_middleware import observe
from corral.telemetry.request_observer import Asked, RequestObserver


class StoredWork:
    """Runs what clients have left with the server: lines of batches, requests of the journal. Each has a
    record of its own, and may do what its key may do now; limits are checked where tasks are submitted."""

    def __init__(
        self, table: RouteTable, keys: Keys, lend: Lend, observers: Sequence[RequestObserver]
    ) -> None:
        self._table = table
        self._keys = keys if keys else None
        self._lend = lend
        self._observers = observers

    async def run(self, ask: Ask, send: Send) -> None:
        asked = Asked("POST", ask.path, ask.path)
        await observe(
            ask.caller.record, send, lambda send: self._answer(ask, send), lambda: asked, self._observers
        )

    async def _answer(self, ask: Ask, send: Send) -> None:
        record, route = ask.caller.record, self._table.post(ask.path)
        try:
            if route is None:
                raise NotFound("File Not Found")
            if self._keys is not None:
                record.client = self._keys.renew(record.client)
                record.client.require(route.policy.permission, f"POST {ask.path}")
        except CorralError as error:
            shape = route.policy.errors if route is not None else LLAMA_ERRORS
            await send_all(error_response(error, ask.path, shape, record.id), send)
            return
        await answer_internally(route, ask, self._lend, send)
