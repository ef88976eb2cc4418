"""Fork an answer while it is generated: a second one begins with the same tokens, and is drawn with another
seed.

The second answer is a request of its own. It renders what the first one has said, then what its tasks say.
"""

from __future__ import annotations

import secrets
from dataclasses import replace

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from corral.api.choice import Choice
from corral.api.durable import DurableWork, new_opening, set_work
from corral.api.durable_request import model_identity
from corral.api.live_answers import Live, Source
from corral.api.prepare import PreparedCompletion
from corral.api.respond import respond
from corral.api.state import state_of
from corral.core.answer_id import use_source
from corral.core.params import RANDOM_SEED
from corral.core.result import Edited, TaskResult
from corral.core.task import Task
from corral.storage.journal_record import History, Opening
from corral.telemetry.scope import record_of


class ForkedWork(DurableWork):
    """Mutable: a second answer. It is durable if the first one is."""

    @property
    def is_resumed(self) -> bool:
        return False

    @property
    def outlives_client(self) -> bool:
        return self.opening.has_ids

    async def adopt(self, prepared: PreparedCompletion) -> PreparedCompletion:
        """Record the tasks and what the first answer has said."""
        assert self.history is not None
        if self._journal is not None:
            self._file = await self._journal.create(self.opening)
        for choice, result, _ in self.history.results:
            await self._record(choice, result)
        tasks = [self.history.resumed(task, i) for i, (task, _) in enumerate(prepared.tasks)]
        media = [media for _, media in prepared.tasks]
        return replace(prepared, tasks=list(zip(tasks, media, strict=True)))


async def fork(request: Request, live: Live, source: Source, seed: int | None) -> Response:
    """Answer with the second answer, in the form of the first one: whole, or as a stream."""
    base = secrets.randbelow(RANDOM_SEED) if seed is None else seed
    pairs = zip(live.choices, source.prepared.tasks, strict=True)
    tasks = [(_seeded(choice, base), media) for choice, (_, media) in pairs]
    work = _new_work(request, live, [task for task, _ in tasks])
    set_work(request.scope, work)
    work.draw_ids()
    prepared = replace(source.prepared, tasks=tasks)
    return await respond(request, prepared, source.renderer.fork(), source.is_stream)


def _new_work(request: Request, live: Live, tasks: list[Task]) -> ForkedWork:
    opening, first = _opening(request, tasks), live.work
    results = [(choice.index, said, 0) for choice in live.choices for said in _said(choice)]
    if first is None or not first.outlives_client:
        return ForkedWork(None, opening, History(opening, 0, results))
    opening = msgspec.structs.replace(
        opening, path=first.opening.path, body=first.opening.body, has_ids=True, headers=first.opening.headers
    )
    journal = state_of(request).journal if opening.body else None
    return ForkedWork(journal, opening, History(opening, 0, results))


def _opening(request: Request, tasks: list[Task]) -> Opening:
    use_source(None)
    record = record_of(request)
    opening = new_opening(request, record.client, record.id, b"", model_identity(state_of(request)))
    return msgspec.structs.replace(opening, tasks=tasks)


def _seeded(choice: Choice, base: int) -> Task:
    params = choice.task.params
    sampling = msgspec.structs.replace(params.sampling, seed=(base + choice.index) % RANDOM_SEED)
    params = msgspec.structs.replace(params, sampling=sampling)
    return msgspec.structs.replace(choice.task, params=params, given=[], resume=[], id=-1, fd=-1)


def _said(choice: Choice) -> list[TaskResult]:
    """Return what a choice has said so far, as results."""
    texts = choice.texts if choice.done is None else choice.texts[:-1]
    said = Edited(task_id=-1, tokens=[*choice.tokens], text="".join(texts))
    return [said] if choice.done is None else [said, choice.done]
