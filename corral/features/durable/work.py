"""Durable requests: their streams can be continued, with `--journal` also after the server was killed.

What a client gets is in the journal before. A later server prepares the request again, renders the recorded
results to the same bytes, and has the engine continue the recorded tasks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import msgspec

from corral.api.answer_log import AnswerLog
from corral.api.stream_id import PREFIX
from corral.core.answer_id import SEED_BYTES, IdSource, draw_hex, use_source
from corral.core.build import BUILD
from corral.core.client import Client
from corral.core.errors import CorralError, Unavailable
from corral.core.result import Admitted, Done, Progress, PromptProbs, TaskResult, Tokens
from corral.core.task import ControlVerb
from corral.generate.prepare import PreparedCompletion
from corral.storage.journal import Journal, JournalFile
from corral.storage.journal_record import History, JournalHeader, encode_control, encode_end, encode_result


class DurableWork:
    """Mutable: one durable request. `log`: takes its stream; a response in the background has its own."""

    def __init__(
        self,
        journal: Journal | None,
        opening: JournalHeader,
        history: History | None = None,
        log: AnswerLog | None = None,
    ) -> None:
        self.opening = opening
        self.log = log
        self.keeps_progress = False
        self.keeps_timings = False
        self.history = history
        self._journal = journal
        self._file: JournalFile | None = None
        self._heard: set[tuple[int, type]] = set()  # kinds of results that were recorded
        self._source = IdSource(opening.seed, opening.created)

    @property
    def id(self) -> str:
        return self.opening.id

    @property
    def is_resumed(self) -> bool:
        return self.history is not None

    @property
    def is_paused(self) -> bool:
        """Whether the client of an earlier server has paused it."""
        return self.history is not None and self.history.is_paused

    @property
    def remarks(self) -> list[str]:
        """Warnings for the client."""
        if self.opening.build == BUILD:
            return []
        return [f"begun by build {self.opening.build}, continued by {BUILD}: tokens may differ"]

    def rename(self, id: str) -> None:
        """Give the request the id by which its client knows it."""
        self.opening = msgspec.structs.replace(self.opening, id=id)

    def draw_ids(self) -> None:
        """Have the ids and times of the answer follow from the record."""
        use_source(self._source)

    def ended(self, choice: int) -> bool:
        """Whether an earlier server has finished a choice."""
        results = self.history.results if self.history is not None else []
        return any(index == choice and isinstance(result, Done) for index, result, _ in results)

    async def adopt(self, prepared: PreparedCompletion) -> PreparedCompletion:
        """Record the tasks of a new request; return those of one that is resumed as they were recorded."""
        if self.history is None:
            tasks = [task for task, _ in prepared.tasks]
            if self._journal is not None:
                self.opening = msgspec.structs.replace(self.opening, tasks=tasks)
                self._file = await self._journal.create(self.opening)
            return prepared
        if len(self.opening.tasks) != len(prepared.tasks):
            raise CorralError("the journal has other tasks for this request")
        if self._journal is not None and not self.history.ended_at:
            self._file = await self._journal.reopen(self.history)
        recorded = [
            (self.history.resumed(task, i), prepared.tasks[i][1]) for i, task in enumerate(self.opening.tasks)
        ]
        return replace(prepared, tasks=recorded)

    def replay(self) -> Iterator[tuple[int, TaskResult]]:
        """Yield the recorded results."""
        for choice, result, at in self.history.results if self.history is not None else ():
            self._heard.add((choice, type(result)))
            if isinstance(result, Done):
                self._source.now = at
            yield choice, result
        if self.log is not None:
            self.log.end_replay()

    async def take(self, choice: int, result: TaskResult) -> bool:
        """Write a new result before its client gets it; False: the client has it."""
        if self._is_repeated(choice, result):
            return False
        await self._record(choice, result)
        return True

    def note_loss(self, error: Unavailable) -> None:
        """If the engine is gone for good, a later server continues."""
        if not error.retry_after_s:
            self._leave()

    def note_control(self, choice: int, verb: ControlVerb, n_predict: int) -> None:
        """Record how the client has controlled a choice, for a later server."""
        if self._file is not None and self._journal is not None:
            self._journal.post(self._file.append, encode_control(choice, verb, n_predict))

    def end(self) -> None:
        """The request has ended, or its server stops: then the journal takes nothing any more."""
        if self._file is not None and self._journal is not None:
            self._journal.post(self._file.end, encode_end(int(time.time())))
            self._file = None

    def _leave(self) -> None:
        """Write no more, and do not say that the request has ended."""
        if self._file is not None and self._journal is not None:
            self._journal.post(self._file.close)
            self._file = None

    def _is_repeated(self, choice: int, result: TaskResult) -> bool:
        """Whether a resumed task reports what the client already has."""
        if isinstance(result, Progress) and not self.keeps_progress:
            return True
        if isinstance(result, Progress | PromptProbs):
            return (choice, Tokens) in self._heard
        return isinstance(result, Admitted) and (choice, Admitted) in self._heard

    async def _record(self, choice: int, result: TaskResult) -> None:
        now = int(time.time())
        if isinstance(result, Done):
            self._source.now = now
        if self._file is None or self._journal is None:
            return
        data = encode_result(choice, result, now, self.keeps_timings)
        if not await self._journal.run(self._file.append, data):
            self._file = None


def new_opening(
    path: str, headers: Mapping[str, str], client: Client, request_id: str, body: bytes, model: str
) -> JournalHeader:
    kept = {name: headers[name] for name in _HEADERS if name in headers}
    return JournalHeader(
        id=PREFIX + draw_hex(16),
        client=client,
        path=path,
        headers={**kept, "x-request-id": request_id},
        body=body,
        seed=bytes.fromhex(draw_hex(SEED_BYTES)),
        created=int(time.time()),
        build=BUILD,
        model=model,
        tasks=[],
    )


# Those that routes read.
_HEADERS = ("content-type", "anthropic-version", "anthropic-beta", "x-conversation-id")
