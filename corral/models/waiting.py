"""Tell a client that streams how far its model is, while it waits for it: `return_progress` asks for that.

The status line is sent before the model is ready, so that an error becomes the last event of the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from corral.api.error import render_error_for
from corral.api.json_encode import encode_json
from corral.api.sse import SSE, encode_event
from corral.api.streamed_response import UNBUFFERED
from corral.core.errors import CorralError
from corral.generate.disconnect import run_for_client
from corral.models.model import ModelState, ServedModel
from corral.models.registry import Entry, Registry
from corral.models.request_name import has_flag
from corral.models.status import render_status

_N_STEPS = 20  # of the progress, each an event
_HEADERS = [(b"content-type", SSE.media_type.encode()), *UNBUFFERED]


def wants_progress(body: bytes) -> bool:
    """Whether a request streams and asks for progress; may block if the body is long."""
    return has_flag(body, "stream") and has_flag(body, "return_progress")


class WaitingStream:
    """Mutable: the stream of one request, of which `send` gets the answer."""

    def __init__(
        self, scope: Scope, send: Send, registry: Registry, entry: Entry, event: Mapping[str, Any]
    ) -> None:
        """`event`: of the request's API, without text."""
        self._event = event
        self._scope = scope
        self._send = send
        self._registry = registry
        self._entry = entry
        self._model = entry.model
        self._has_begun = False
        self._error: list[bytes] | None = None  # pieces of an answer that is none

    async def wait(self, receive: Receive, ping_s: float) -> None:
        """Send the states of the model until it is ready. Raises CorralError before the first of them, and
        ClientGone."""
        await run_for_client(self._report(ping_s), receive)

    async def fail(self, error: CorralError) -> None:
        """End the stream with an error."""
        _, body, _ = render_error_for(self._scope, error)
        await self._put(encode_event(body), more=False)

    @property
    def has_begun(self) -> bool:
        return self._has_begun

    async def send(self, message: Message) -> None:
        """Send a message of the answer."""
        if not self._has_begun:
            await self._send(message)
        elif message["type"] == "http.response.start":
            self._error = [] if message["status"] != 200 else None
        elif self._error is None:
            await self._send(message)
        else:
            self._error.append(message.get("body", b""))
            if not message.get("more_body", False):
                await self._put(b"data: " + b"".join(self._error) + b"\n\n", more=False)

    async def _report(self, ping_s: float) -> None:
        changed = asyncio.Event()
        changed.set()  # what fails at once has failed by now
        with _listening(self._registry, lambda _: changed.set()):
            shown: Any = None
            while self._is_waiting:
                in_time = await _wait(changed, ping_s)
                changed.clear()
                now = self._place, self._model.state, self._model.loading.stage, self._step
                if self._is_waiting and (now != shown or not in_time):
                    shown = now
                    await self._tell()
        await self._entry.ready()

    @property
    def _is_waiting(self) -> bool:
        """Whether the engine does not run yet: a model that was loaded before takes requests earlier."""
        is_starting = self._model.state is ModelState.LOADING and not self._entry.is_refused
        return is_starting or not self._entry.is_ready

    async def _tell(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        status = render_status(self._model, self._place)
        await self._put(
            b"data: "
            + encode_json({**self._event, "model": self._model.name, "model_progress": status})
            + b"\n\n"
        )

    async def _put(self, body: bytes, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    @property
    def _place(self) -> int | None:
        return self._registry.place(self._model)

    @property
    def _step(self) -> int:
        return int(self._model.loading.progress * _N_STEPS)


@contextlib.contextmanager
def _listening(registry: Registry, listener: Callable[[ServedModel], None]) -> Iterator[None]:
    registry.listeners.append(listener)
    try:
        yield
    finally:
        registry.listeners.remove(listener)


async def _wait(event: asyncio.Event, timeout_s: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), timeout_s if timeout_s > 0 else None)
    except asyncio.TimeoutError:
        return False
    return True
