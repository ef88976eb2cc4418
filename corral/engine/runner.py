"""Evaluate prompts and answers: open requests, plan the batches of a step, and run them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from weakref import WeakSet

import msgspec
import numpy as np

from corral.core.chunk import Chunk, DecodeStatus
from corral.core.errors import ContextExceeded, CorralError, InvalidRequest
from corral.core.media import has_media
from corral.core.modifier import AdapterConfig
from corral.core.result import BatchExact, Decodes, Event, Failed, Heartbeat
from corral.core.settings import EngineSettings
from corral.core.task import Command, Task
from corral.engine.batch import (
    MIN_PREFILL,
    BatchPlan,
    BatchShape,
    NextToken,
    PendingPrompt,
    PromptPart,
    count_stream_batches,
    plan_batches,
)
from corral.engine.checkpointer import Checkpointer
from corral.engine.coroutine import Coroutine, Reservations
from corral.engine.cost import CostModel, Load, load_of
from corral.engine.decoder import Decoder
from corral.engine.generation import Generation, Work
from corral.engine.kv import KvStore
from corral.engine.media import MediaEncoder
from corral.engine.ports import Backend
from corral.engine.probe import probe_exact
from corral.engine.probe_streams import probe_streams
from corral.engine.prompt_probs import MAX_ROWS
from corral.engine.request import Request, RequestPhase
from corral.engine.retry import Retry
from corral.engine.saved import SavedState
from corral.engine.scheduler import Scheduler
from corral.engine.slot import Slot
from corral.engine.speculation import Speculation
from corral.engine.worker import PlannedBatch, Worker

_FEWER = (
    "--batch-exact: {n_known} streams in a batch differ from each alone, against what is known of this CPU; "
    "batches have at most {n}. Please report it, with the output of `corral doctor`"
)
_log = logging.getLogger(__name__)


class Runner(Worker):
    handles = (Task,)

    def __init__(
        self,
        backend: Backend,
        settings: EngineSettings,
        scheduler: Scheduler,
        kv: KvStore,
        media: MediaEncoder,
        receive: Callable[[Request], Generator[Future[SavedState], SavedState, SavedState | None]],
        cost: CostModel,
        clock: Callable[[], float],
    ) -> None:
        """`receive`: reads the state that has come with a task."""
        self._backend = backend
        self._settings = settings
        self._scheduler = scheduler
        self._kv = kv
        self._media = media
        self._receive = receive
        self._clock = clock
        self.decoder = Decoder(backend, cost, clock)
        self.speculation = Speculation(backend, settings, cost)
        self.generation = Generation(backend, settings, scheduler, kv, self.speculation, clock)
        # Where answers depend on their neighbours anyway, everything shares a batch.
        mixes = backend.mixes_batches or not backend.is_exact
        self._shape = BatchShape(backend.n_batch, backend.n_ubatch, mixes)
        self._groups_streams = backend.batch_exact.is_on and not mixes
        if self._groups_streams:
            self._shape = replace(self._shape, n_streams=1, n_adapted=1)  # until the warm-up has tried more
        self.is_calibrated = True  # `warm_up` knows better
        self._n_slots = backend.n_seq
        self._prompt_cap = backend.n_prefill_max  # shrinks while KV cells are short
        self._checkpointer = Checkpointer(scheduler, kv)
        self._requests: WeakSet[Request] = WeakSet()

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    @property
    def is_urgent(self) -> bool:
        requests = (slot.request for slot in self._scheduler.slots)
        return any(each is not None and each.is_evaluated and not each.is_batch for each in requests)

    @property
    def adapters_in_use(self) -> list[AdapterConfig]:
        return [request.task.params.lora for request in self._requests]

    def find(self, task_id: int) -> Request | None:
        """Return the request of a task that has not ended."""
        found = (request for request in self._requests if request.id == task_id and not request.is_stopped)
        return next(found, None)

    def abort_if_running(self, task_id: int) -> None:
        self.decoder.abort_if_running(task_id)

    def abort_if_yielding(self) -> None:
        self.decoder.abort_if_yielding()

    @property
    def decodes(self) -> Decodes:
        return self.decoder.decodes

    def heartbeat(self) -> Heartbeat:
        return self.decoder.heartbeat()

    def warm_up(self) -> None:
        """Touch the weights and measure a first cost of evaluation: what the first request would wait for."""
        self._time_decode(2)  # it may read the weights from the disk: it says nothing of later ones
        self.decoder.cost.observe(Load(n_prompt=MIN_PREFILL), self._time_decode(MIN_PREFILL))
        self.decoder.cost.observe(Load(n_generating=1), self._time_decode(1))
        if self._groups_streams:
            self._group_streams(self._backend.batch_exact)
        can_draft = self._backend.can_cut or self._kv.needs_mark
        self.is_calibrated = not (self._settings.drafts and self.speculation.n_exact == 1 and can_draft)

    def _time_decode(self, n: int) -> float:
        """Evaluate `n` tokens, forget them, and return the milliseconds it took."""
        started = self._clock()
        self._backend.decode([Chunk(0, 0, np.zeros(n, np.int32), logits=True)])
        self._backend.trim(0, 0)
        return (self._clock() - started) * 1e3

    def calibrate(self, is_over: Callable[[], bool]) -> None:
        """Find out how many tokens may be drafted. That takes dozens of decodes, so it is done in a pause;
        until then there are no drafts."""
        slot = min(self._scheduler.public, key=lambda slot: (len(slot.tokens) > 0, slot.last_used))
        with self._kv.emptied(slot):
            self._backend.apply_lora(())
            n_exact = probe_exact(self._backend, self.decoder.cost, self._clock, slot.id, is_over)
        if n_exact is not None:
            # A draft is as many rows as it has tokens.
            limits = self._backend.batch_exact.limits.values() if self._groups_streams else ()
            self.speculation.n_exact = min([n_exact, *limits])
            self.is_calibrated = True

    def _group_streams(self, known: BatchExact) -> None:
        """Let as many streams share a batch as are known not to change each other's bits."""
        if self._backend.can_cut:
            n = probe_streams(self._backend, known.n_streams)
            self._shape = replace(self._shape, n_streams=n, n_adapted=min(n, known.n_adapted))
            if n < known.n_streams:
                _log.warning("%s", _FEWER.format(n=n, n_known=known.n_streams))

    @property
    def batch_exact(self) -> BatchExact:
        """What is promised, once the engine is warm."""
        known, shape = self._backend.batch_exact, self._shape
        if not self._groups_streams:
            return known
        return msgspec.structs.replace(known, n_streams=shape.n_streams, n_adapted=shape.n_adapted)

    def handle(self, command: Command, arrival: int) -> Coroutine | Event:
        assert isinstance(command, Task)
        request = self._open(command, arrival)
        if not command.prompt:
            # compat: /completion: an empty prompt is answered by an empty text.
            return request.done(0, "", self._clock())
        return self._prepare(request)

    def _open(self, task: Task, arrival: int) -> Request:
        """Open a request, and its negative if it has one; raises if it cannot be served."""
        at_once = self._repeats_at_once(task)
        tokens = np.array([*task.prompt, *task.resume] if at_once else task.prompt, np.int32)
        needs_media = bool(task.media) or has_media(tokens)
        media = self._media.open(task.fd, (task.media, tokens))[0] if needs_media else None
        n_ctx, guidance = self._backend.n_ctx, task.params.guidance
        if guidance is not None and guidance.scale == 1.0:
            guidance = None
        for prompt in (task.prompt, guidance.negative if guidance else ()):
            if len(prompt) >= n_ctx:
                raise ContextExceeded(len(prompt), n_ctx)
        lora_key = self._backend.adapters.lora_key(task.params.lora)
        request = Request(task, arrival, lora_key, at_once)
        request.media = media
        request.retry = self._open_retry(task)
        self._requests.add(request)
        if guidance is not None:
            self._backend.reserve(2 * self._n_slots)
            self._scheduler.add_negatives(n_ctx)
            params = msgspec.structs.replace(
                task.params, guidance=None, n_system=0, cache_report=False, n_prompt_probs=-1
            )
            negative = msgspec.structs.replace(task, prompt=list(guidance.negative), params=params, media=[])
            request.pair_with(Request(negative, arrival, lora_key, at_once))
        return request

    def _repeats_at_once(self, task: Task) -> bool:
        """Whether what another engine had delivered may be evaluated like the prompt. Not where exact bits
        are promised, the context was shifted, or every row of logits counts."""
        params, guidance = task.params, task.params.guidance
        if self._backend.batch_exact.is_on and self._backend.batch_exact.n_streams:
            return False
        n_prompt = max(len(task.prompt), len(guidance.negative) if guidance is not None else 0)
        needs_rows = params.sampling.remembers_draws or params.n_prompt_probs >= 0
        return n_prompt + len(task.resume) < self._backend.n_ctx - 1 and not needs_rows

    def _open_retry(self, task: Task) -> Retry | None:
        """Open the check of an answer whose schema its grammar does not express whole."""
        checks = task.params.constraint.checks if task.params.constraint is not None else ()
        if not checks:
            return None
        if not self._backend.can_cut or self._settings.grp_attn_n > 1:
            raise InvalidRequest(checks[0].refusal, param=checks[0].field)
        return Retry(self._backend.open_checker(checks), self._settings.schema_retries)

    def _prepare(self, request: Request) -> Coroutine:
        """Queue a request once its grammar is compiled and the prefix of its prompt is read from disk."""
        constraint, started = request.task.params.constraint, self._clock()
        if constraint is not None:
            try:
                request.grammar = yield self._backend.compile(constraint)
            except Exception:
                if request.needs_grammar:
                    raise
        if request.task.n_past:
            request.handed_over = yield from self._receive(request)
        reading = self._scheduler.fetch(request) if request.handed_over is None else None
        if reading is not None:
            request.fetched = yield reading
        self._scheduler.reporter.on_prepared(request, started)
        self._scheduler.add(request)
        return None

    def cancel(self, task_id: int) -> None:
        request = self._scheduler.remove(task_id)
        if request is not None:
            request.close()

    def close(self) -> None:
        self._kv.flush([slot for slot in self._scheduler.slots if slot.is_idle])
        self.speculation.flush()

    def admit(self, now: float, reserved: Reservations) -> list[Event]:
        events: list[Event] = [*self._scheduler.admit(now, reserved)]
        self._requeue_yielded()
        for request in self._scheduler.take_stuck():
            error = CorralError("the context is full: the request's state could not be restored")
            events.append(Failed(request.id, error.info()))
            request.close()
        for slot, request in self._scheduler.running(RequestPhase.PREFILL):
            if request.media is not None and request.media.error is not None:
                events += self.generation.fail(slot, request, request.media.error)
            elif request.media is not None:
                self._media.want(request.media, request.n_past)
        self.generation.make_room()
        self._checkpointer.begin()
        return events

    def _requeue_yielded(self) -> None:
        for request in self._scheduler.take_yielded():
            task = msgspec.structs.replace(request.task, resume=request.delivered)
            again = self._open(task, request.arrival)
            again.grammar = request.grammar
            request.close()
            self._scheduler.add(again)

    def plan(self, ms: float) -> list[PlannedBatch]:
        return [PlannedBatch(partial(self._run, plan)) for plan in self._plan(ms)]

    def end_step(self, _ms: float) -> None:
        # Not when the step is planned: what came just before is not handled yet.
        self.decoder.must_yield = False

    def _plan(self, ms: float) -> list[BatchPlan]:
        answers = self._running(RequestPhase.GENERATING)
        streams = [pair for pair in answers if len(pair[1].pending) == 1]
        drafts = self._plan_drafts(streams)
        tokens = [NextToken(slot.id, request.lora_key) for slot, request in streams if not len(request.draft)]
        # Tokens that a grammar forced are evaluated like a prompt.
        evaluated = [pair for pair in answers if len(pair[1].pending) > 1 and not pair[1].is_redoing]
        redone = [
            (PromptPart(slot.id, len(request.pending)),) for slot, request in answers if request.is_redoing
        ]
        if self._settings.cont_batching or not answers:
            evaluated += self._running(RequestPhase.PREFILL)
        prompts = [
            self._prompt(slot, request)
            for slot, request in evaluated
            if len(request.pending) and not request.is_stalled
        ]
        budget = self._prompt_cap
        if streams and prompts:
            n_groups = count_stream_batches(tokens, self._shape) + len(drafts)
            cost = self.decoder.cost
            budget = min(budget, cost.n_tokens_in(ms - (n_groups - 1) * cost.decode_ms))
        return [*redone, *drafts, *plan_batches(tokens, prompts, budget, self._shape)]

    def _running(self, phase: RequestPhase) -> list[tuple[Slot, Request]]:
        """Return what may run in this step: lines of batches pause while there is something else."""
        running = self._scheduler.running(phase)
        return [pair for pair in running if not pair[1].is_batch] if self.yields else running

    def _plan_drafts(self, streams: Sequence[tuple[Slot, Request]]) -> list[BatchPlan]:
        if self.speculation.n_exact == 1 or not any(r.task.params.speculative.n_max for _, r in streams):
            return []
        rooms = [
            self.generation.room_ahead(slot, request)
            if self._kv.can_rewind(slot) or self._kv.needs_mark
            else 0
            for slot, request in streams
        ]
        return self.speculation.plan(streams, rooms)

    def _prompt(self, slot: Slot, request: Request) -> PendingPrompt:
        """Return the rest of a prompt, up to where media begin or end."""
        n, segment = min(self._checkpointer.room(request), self._kv.room(slot)), request.segment
        if request.reports_prompt:
            return PendingPrompt(slot.id, n, request.lora_key, is_alone=True, n_max=MAX_ROWS)
        if segment is None:
            return PendingPrompt(
                slot.id, n, request.lora_key, is_answer=request.phase is RequestPhase.GENERATING
            )
        return PendingPrompt(slot.id, min(n, segment.n), request.lora_key, segment.is_alone, segment.is_whole)

    def _run(self, plan: BatchPlan) -> list[Event]:
        """Evaluate a planned batch and return its events."""
        parts = [(self._scheduler.slots[part.slot], part.n) for part in plan]
        # An earlier batch of the step may have ended a request, or swapped it out.
        work = [
            (s, s.request, self._mark(s, s.request, n))
            for s, n in parts
            if s.request is not None and s.request.swapped is None
        ]
        if not work or (self.decoder.must_yield and all(request.is_batch for _, request, _ in work)):
            return []
        chunks = [self._chunk(slot, request, n) for slot, request, n in work]
        try:
            only = work[0][1].positive or work[0][1]
            self._backend.apply_lora(only.task.params.lora)
            is_own = len(work) == 1 and work[0][2] > 1
            only_of = only.id if is_own else None
            status = self.decoder.decode(chunks, load_of(chunks), only_of, self._can_yield(work))
        except CorralError as error:
            return self._fail(work, error)
        if status is DecodeStatus.OK:
            self._prompt_cap = self._backend.n_prefill_max
            events = self.generation.advance(work, chunks)
            self._checkpointer.take(work)
            return events
        events = self._rewind(work)
        return events + self._relieve(work) if status is DecodeStatus.NO_ROOM else events

    def _can_yield(self, work: Sequence[Work]) -> bool:
        """Whether it is all of batches, has prompts, and can be evaluated again at little cost."""
        return (
            all(request.is_batch for _, request, _ in work)
            and any(n > 1 for _, _, n in work)
            and all(request.segment is None and self._kv.can_rewind(slot) for slot, request, _ in work)
        )

    def _mark(self, slot: Slot, request: Request, n: int) -> int:
        """Mark where a draft begins, if only that allows to take it back; returns how many tokens to
        evaluate: without a mark, no draft."""
        is_draft = n > 1 and len(request.pending) == 1
        if not (is_draft and self._kv.needs_mark):
            return n
        started = self._clock()
        is_marked = self._kv.set_mark(slot)
        self.speculation.mark_ms = (self._clock() - started) * 1e3
        if is_marked:
            return n
        request.draft = request.draft[:0]
        return 1

    def _chunk(self, slot: Slot, request: Request, n: int) -> Chunk:
        """Return the first `n` pending tokens of a request as a chunk."""
        if n == 1 == len(request.pending) and request.phase is RequestPhase.GENERATING:
            return Chunk(slot.id, self._kv.position(slot), request.pending, logits=1)
        segment = request.segment
        pos = self._kv.position(slot, segment.origin if segment is not None else None)
        rows = segment.rows(n) if segment is not None else None
        return Chunk(slot.id, pos, request.chunk(n), request.n_logits(n), rows)

    def _fail(self, work: Sequence[Work], error: CorralError) -> list[Event]:
        return [event for slot, request, _ in work for event in self.generation.fail(slot, request, error)]

    def _rewind(self, work: Sequence[Work]) -> list[Event]:
        """Undo a batch that failed: restore its beginning, or go further back if the model cannot."""
        events: list[Event] = []
        for slot, request, n in work:
            if request.segment is not None and request.segment.is_in_flat:
                self._kv.trim(slot, 0)  # an image's tokens share a position: it cannot be cut between them
            elif self._kv.rewind(slot, goes_back=request.phase is RequestPhase.PREFILL):
                continue
            if request.phase is RequestPhase.PREFILL:
                request.start(self._clock(), n_cached=len(slot.tokens))
            else:
                error = CorralError("the context was lost in a failed decode")
                events += self._fail([(slot, request, n)], error)
        return events

    def _relieve(self, work: Sequence[Work]) -> list[Event]:
        """Free KV cells: evict cached sequences, then shrink the prompt chunks, then swap out the newest
        request."""
        cached = self._scheduler.evictable
        if cached:
            self._kv.evict(cached[0])
        elif self._scheduler.has_due:
            pass  # they are about to be used, and may be free after that
        elif self._prompt_cap > MIN_PREFILL and any(n > MIN_PREFILL for _, _, n in work):
            self._prompt_cap //= 2
        else:
            holders = [
                *self._scheduler.running(RequestPhase.PREFILL),
                *self._scheduler.running(RequestPhase.GENERATING),
            ]
            newest, request = max(holders, key=lambda pair: (pair[1].can_yield, pair[1].arrival))
            is_alone = all(other.arrival == request.arrival for _, other in holders)
            if request.can_yield and not is_alone:
                self._scheduler.evict(newest)
                return []
            if is_alone or not self._scheduler.preempt(newest):
                return self._fail(work, CorralError("the context is full and nothing can be evicted"))
        return []
