"""Continue the durable requests of an earlier server, each as a request of its client to this one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import orjson
from starlette.types import Message, Send

from corral.api.answer_log import AnswerLog
from corral.api.internal import Ask, RunAsk
from corral.core.removed import FIELDS
from corral.core.repeat import repeat
from corral.features.durable.work import DurableWork
from corral.generate.background import Background
from corral.generate.caller import Caller
from corral.generate.services import ServerServices
from corral.storage.journal import Journal
from corral.storage.journal_record import History
from corral.telemetry.record import RequestRecord

_REFUSED = (429, 503, 529)
_NO_ROOM = 507
_READY_S = 0.05  # between two checks for a loaded model
_RETRY_S = 1.0
_SWEEP_S = 60.0
_log = logging.getLogger("corral")


class DurableRunner:
    """Mutable: what continues."""

    def __init__(
        self, services: ServerServices, journal: Journal, run_ask: RunAsk, is_ready: Callable[[], bool]
    ) -> None:
        """`is_ready`: whether the server can run requests, or can load their models."""
        self._services = services
        self._journal = journal
        self._run_ask = run_ask
        self._is_ready = is_ready
        self._background = Background()

    def start(self) -> None:
        self._restore(self._journal.found)
        self._journal.found = []
        self._background.spawn(self._sweep())

    async def adopt(self, is_alive: Callable[[str], bool]) -> None:
        """Continue the requests of servers that are gone."""
        self._restore(await self._journal.run(self._journal.adopt, is_alive))

    def _restore(self, found: Sequence[History]) -> None:
        """Make all streams known at once; they continue when their models are loaded."""
        for history in found:
            opening = history.opening
            if opening.is_background:
                self._restore_response(history)
                continue
            log = self._services.streams.restore(opening.client.id, opening.id)
            log.has_ids = opening.has_ids
            log.ping_s = max(0, self._services.settings.server.sse_ping_s)
            log.run(self._run(history, log))

    async def close(self) -> None:
        await self._background.close()

    def _restore_response(self, history: History) -> None:
        if history.is_complete and self._services.settings.server.responses_path:
            return  # it is stored
        self._services.responses.restoring.add((history.opening.client.id, history.opening.id))
        self._background.spawn(self._run(history, None))

    async def _run(self, history: History, log: AnswerLog | None) -> None:
        try:
            while not self._is_ready():
                await asyncio.sleep(_READY_S)
            while (answer := await self._call(history, log)).status in _REFUSED:
                await asyncio.sleep(answer.retry_s)
        finally:
            self._services.responses.restoring.discard((history.opening.client.id, history.opening.id))
            if log is not None:
                log.end_replay()

    async def _call(self, history: History, log: AnswerLog | None) -> _Answer:
        """Send the request again; its model is loaded if necessary."""
        opening = history.opening
        body = await asyncio.to_thread(_without_removed, opening.body)
        query = {"model": opening.model_name, "autoload": "true"} if opening.model_name else {}
        record = RequestRecord(opening.headers["x-request-id"], opening.client)
        work = DurableWork(self._journal, opening, history, log)
        caller = Caller(record, log=log, work=work)
        answer = _Answer(log.send if log is not None else None)
        await self._run_ask(Ask(caller, opening.path, body, opening.headers, query), answer.send)
        if answer.status >= 400 and answer.status not in _REFUSED:
            _log.warning("--journal: %s cannot be continued: %s", opening.id, answer.error)
            if answer.status != _NO_ROOM:  # a later server may have room for its model
                self._journal.post(self._journal.drop, opening.client, opening.id)
        return answer

    async def _sweep(self) -> None:
        await repeat("removing old requests", lambda: self._journal.run(self._journal.sweep), _SWEEP_S)


def _without_removed(body: bytes) -> bytes:
    """Return a body without fields of former versions, which are refused in new requests."""
    if not any(field.encode() in body for field in FIELDS):
        return body
    content = orjson.loads(body)
    return orjson.dumps({key: value for key, value in content.items() if key not in FIELDS})


class _Answer:
    """Mutable: passes an answer on, unless the server refuses the request for now."""

    def __init__(self, send: Send | None) -> None:
        self._send = send
        self.status = 0
        self.retry_s = _RETRY_S
        self.error = ""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.retry_s = max(_RETRY_S, float(dict(message["headers"]).get(b"retry-after", 0)))
        elif self.status >= 400:
            self.error += message.get("body", b"").decode()
        if self._send is not None and self.status not in _REFUSED:
            await self._send(message)


def start_durable(
    services: ServerServices, run_ask: RunAsk, is_ready: Callable[[], bool]
) -> DurableRunner | None:
    if services.journal is None:
        return None
    runner = DurableRunner(services, services.journal, run_ask, is_ready)
    runner.start()
    return runner
