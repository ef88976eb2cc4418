"""Continue the durable requests of an earlier server, each as a request of its client to this one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Send

from corral.api.batch.call import Receive, make_scope
from corral.api.durable import DurableWork, set_work
from corral.api.durable_request import model_identity
from corral.api.followed_stream import set_session
from corral.api.state import AppState
from corral.api.stream_session import StreamSession
from corral.api.trust import mark_internal
from corral.storage.journal import Journal
from corral.storage.journal_record import History
from corral.telemetry.scope import record_in

_REFUSED = (429, 503, 529)
_READY_S = 0.05  # between two checks for a loaded model
_RETRY_S = 1.0
_SWEEP_S = 60.0
_log = logging.getLogger("corral")


class DurableRunner:
    """Mutable: what continues."""

    def __init__(self, state: AppState, journal: Journal, app: ASGIApp) -> None:
        self._state = state
        self._journal = journal
        self._app = app
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Make all streams known at once; they continue when the model is loaded."""
        for history in self._journal.found:
            opening = history.opening
            if opening.is_background:
                self._restore_response(history)
                continue
            session = self._state.streams.restore(opening.client.id, opening.id)
            session.has_ids = opening.has_ids
            session.ping_s = max(0, self._state.settings.server.sse_ping_s)
            session.run(self._run(history, session))
        self._journal.found = []
        self._spawn(self._sweep())

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
            with contextlib.suppress(BaseException):
                await task

    def _restore_response(self, history: History) -> None:
        if history.is_complete and self._state.settings.server.responses_path:
            return  # it is stored
        place = history.opening.client.id, history.opening.id
        restoring = self._state.responses.restoring
        restoring.add(place)
        self._spawn(self._run(history, None, lambda: restoring.discard(place)))

    async def _run(
        self, history: History, session: StreamSession | None, on_start: Callable[[], None] = lambda: None
    ) -> None:
        try:
            while not (self._state.admission.is_open and self._state.model.is_loaded):
                await asyncio.sleep(_READY_S)
            if not self._is_possible(history):
                self._journal.post(self._journal.drop, history.opening.client, history.opening.id)
                return
            while await self._call(history, session, on_start) in _REFUSED:
                await asyncio.sleep(_RETRY_S)
        finally:
            on_start()
            if session is not None:
                session.end_replay()

    def _is_possible(self, history: History) -> bool:
        if history.opening.model == model_identity(self._state):
            return True
        _log.warning("--journal: %s was answered by another model; it is dropped", history.opening.id)
        return False

    async def _call(self, history: History, session: StreamSession | None, on_start: Any) -> int:
        """Send the request again; returns the status of the answer."""
        opening = history.opening
        headers = {**opening.headers, "content-length": str(len(opening.body))}
        scope = make_scope(opening.path, headers)
        mark_internal(scope)
        record_in(scope).client = opening.client
        work = DurableWork(self._journal, opening, history, session)
        set_work(scope, work)
        if session is not None:
            set_session(scope, session)
        answer = _Answer(session.send if session is not None else None, on_start)
        await self._app(scope, Receive(opening.body), answer.send)
        if answer.status >= 400 and answer.status not in _REFUSED:
            message = "--journal: %s cannot be continued: status %d"
            _log.warning(message, opening.id, answer.status)
            self._journal.post(self._journal.drop, opening.client, opening.id)
        return answer.status

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            await self._journal.run(self._journal.sweep)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Answer:
    """Mutable: passes an answer on, unless the server refuses the request for now."""

    def __init__(self, send: Send | None, on_start: Callable[[], None]) -> None:
        self._send = send
        self._on_start = on_start
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self.status not in _REFUSED:
                self._on_start()
        if self._send is not None and self.status not in _REFUSED:
            await self._send(message)


def start_durable(state: AppState, app: ASGIApp) -> DurableRunner | None:
    if state.journal is None:
        return None
    runner = DurableRunner(state, state.journal, app)
    runner.start()
    return runner
