"""The engine: admit, plan, decode, sample, emit. One thread calls everything here but `abort_if_running`.

Knows tokens and text, no JSON and no HTTP. Effects go to a `Backend`, results to the `emit` it was given.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from corral.core.chunk import Chunk, DecodeStatus
from corral.core.errors import ContextExceeded, CorralError
from corral.core.result import Admitted, Beat, Event, Failed, Progress, StopType, TokenProbs
from corral.core.settings import EngineSettings
from corral.core.task import Cancel, Embed, Order, SlotAction, Stop, Task
from corral.engine.action import Actions
from corral.engine.batch import FLOOR, BatchPlan, BatchShape, Prompt, plan_batches
from corral.engine.context_shift import plan_shift
from corral.engine.decoder import Decoder
from corral.engine.embedder import Embedder
from corral.engine.grouping import Grouping
from corral.engine.job import Jobs, Steps
from corral.engine.kv import KvStore
from corral.engine.ports import Backend
from corral.engine.report import whole_report
from corral.engine.request import Phase, Request
from corral.engine.scheduler import Scheduler
from corral.engine.ses1 import Ses1
from corral.engine.slot import Slot

Work: TypeAlias = tuple[Slot, Request, int]  # so many of a request's pending tokens

UNTIL_CONTEXT_FULL = -2


class Engine:
    def __init__(
        self,
        backend: Backend,
        settings: EngineSettings,
        emit: Callable[[list[Event]], None],
        clock: Callable[[], float] = time.perf_counter,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`wake` is called, from any thread, when an engine that `is_waiting` can go on."""
        self._backend = backend
        self._settings = settings
        self._emit = emit
        self._clock = clock
        self._decoder = Decoder(backend, clock)
        self._shape = BatchShape(backend.n_batch, backend.n_ubatch, backend.mixes_batches)
        grouping = Grouping(settings.grp_attn_n, settings.grp_attn_w)
        ses1 = Ses1(backend, grouping)
        self._kv = KvStore(backend, settings, ses1, grouping)
        self._scheduler = Scheduler(backend.n_seq, backend.n_ctx, self._kv, settings.slot_prompt_similarity)
        self._actions = Actions(self._scheduler, self._kv, ses1, clock)
        self._jobs = Jobs(wake)
        self._embedder = Embedder(backend.open_encoder, emit, clock)
        self.is_stopped = False
        self._prompt_cap = backend.n_ubatch  # shrinks while cells are short
        self._events: list[Event] = []
        self._n_orders = 0

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or bool(self._jobs) or self._embedder.has_work

    @property
    def is_waiting(self) -> bool:
        """All that is left to do waits for other threads, or behind something that does."""
        is_running = self._scheduler.is_running or self._embedder.has_work
        return bool(self._jobs) and not is_running and self._jobs.are_waiting(self._idle())

    def handle(self, order: Order) -> None:
        self._n_orders += 1
        if isinstance(order, Cancel):
            self._cancel(order.task_id)
        elif isinstance(order, Embed):
            self._embedder.add(order)
        elif isinstance(order, SlotAction):
            self._events += self._jobs.start(order.id, self._n_orders, self._actions.steps(order))
            self._reserve_slots()
        elif isinstance(order, Stop):
            self._kv.flush([slot for slot in self._scheduler.slots if slot.is_idle])
            self.is_stopped = True
        else:
            self._submit(order)
        self._flush()

    def abort_if_running(self, task_id: int) -> None:
        """From any thread: cut the decode short if all it does is this task's prompt or embedding."""
        self._decoder.abort_if_running(task_id)
        self._embedder.abort_if_running(task_id)

    def beat(self) -> Beat:
        """From any thread: how long the decode under way has been running."""
        beat = self._decoder.beat()
        return beat if beat.decode_ms else self._embedder.beat()

    def warm_up(self) -> None:
        """Touch the weights and take a first measure of what evaluating costs."""
        slot = self._scheduler.slots[0]
        for n in (2, FLOOR, 1):
            started = self._clock()
            self._backend.decode([Chunk(slot.id, 0, np.zeros(n, np.int32), logits=True)])
            self._backend.trim(slot.id, 0)
            self._decoder.cost.observe(int(n == 1), n if n > 1 else 0, (self._clock() - started) * 1e3)

    def step(self) -> None:
        """One round for everybody: running generations get their token, prompts what is left of the time."""
        self._reserve_slots()
        self._events += self._scheduler.admit(self._clock())
        if self._jobs:
            self._events += self._jobs.run(self._idle())
            self._reserve_slots()
            self._events += self._scheduler.admit(self._clock())
        for request in self._scheduler.take_stuck():
            self._events.append(
                Failed(request.id, CorralError("its saved state could not be restored").info())
            )
            request.close()
        self._make_room_in_contexts()
        self._flush()
        for batch in self._plan():
            self._run(batch)
            self._flush()
        if self._embedder.has_work:
            has_streams = bool(self._scheduler.running(Phase.GENERATING))
            is_shared = bool(self._scheduler.running(Phase.PREFILL))
            self._embedder.step(self._room_ms(is_shared) if has_streams else math.inf)

    def _room_ms(self, is_shared: bool) -> float:
        """For how long running streams can be kept waiting; prompts and embeddings share that evenly."""
        return self._decoder.cost.room_ms(self._settings.max_itl_ms) / (2 if is_shared else 1)

    def _submit(self, task: Task) -> None:
        n_prompt = len(task.prompt)
        request = Request(task, self._n_orders)
        if n_prompt >= self._backend.n_ctx:
            self._events.append(Failed(task.id, ContextExceeded(n_prompt, self._backend.n_ctx).info()))
        elif not n_prompt:
            # compat: /completion: nothing to continue is answered by nothing.
            self._events.append(request.done(0, "", self._clock()))
        else:
            self._events += self._jobs.start(task.id, request.order, self._prepare(request))

    def _prepare(self, request: Request) -> Steps:
        """Queue a request once its grammar is compiled, and the beginning of its prompt read from disk."""
        constraint = request.task.params.constraint
        if constraint is not None:
            try:
                request.grammar = yield self._backend.compile(constraint)
            except Exception:
                if request.needs_grammar:
                    raise
        reading = self._scheduler.fetch(request)
        if reading is not None:
            request.fetched = yield reading
        self._scheduler.add(request)
        return None

    def _reserve_slots(self) -> None:
        """What jobs wait for goes to nobody who came later, and is not evicted once it is their turn."""
        self._scheduler.reserved = self._jobs.reserved
        self._scheduler.due = self._jobs.due(self._idle()) if self._jobs else set()

    def _idle(self) -> list[int]:
        return [slot.id for slot in self._scheduler.slots if slot.is_idle]

    def _cancel(self, task_id: int) -> None:
        self._embedder.cancel(task_id)
        self._jobs.cancel(task_id)
        self._reserve_slots()
        request = self._scheduler.remove(task_id)
        if request is not None:
            request.close()

    def _plan(self) -> list[BatchPlan]:
        answers = self._scheduler.running(Phase.GENERATING)
        generating = [slot.id for slot, request in answers if len(request.pending) == 1]
        runs = [pair for pair in answers if len(pair[1].pending) > 1]
        prompts = [
            Prompt(slot.id, min(len(request.pending), self._kv.room(slot)))
            for slot, request in [*runs, *self._scheduler.running(Phase.PREFILL)]
        ]
        budget = self._backend.n_ubatch
        if generating:
            budget = self._decoder.cost.n_tokens_in(self._room_ms(self._embedder.has_work))
        return plan_batches(generating, prompts, min(budget, self._prompt_cap), self._shape)

    def _run(self, batch: BatchPlan) -> None:
        """Evaluate one planned batch and take what comes out of it."""
        parts = [(self._scheduler.slots[part.slot], part.n) for part in batch]
        work = [(slot, slot.request, n) for slot, n in parts if slot.request is not None]
        chunks = [
            Chunk(slot.id, self._kv.position(slot), request.pending[:n], logits=n == len(request.pending))
            for slot, request, n in work
        ]
        try:
            is_prompt = len(work) == 1 and work[0][2] > 1
            n_generating = sum(n == 1 for _, _, n in work)
            status = self._decoder.decode(chunks, n_generating, work[0][1].id if is_prompt else None)
        except CorralError as error:
            self._fail(work, error)
            return
        if status is not DecodeStatus.OK:
            self._rewind(work)
        if status is DecodeStatus.NO_ROOM:
            self._relieve(work)
        if status is DecodeStatus.OK:
            self._prompt_cap = self._backend.n_ubatch
            for i, part in enumerate(work):
                self._take(i, part, chunks[i])

    def _take(self, i: int, part: Work, chunk: Chunk) -> None:
        slot, request, n = part
        self._kv.extend(slot, chunk.tokens)
        request.evaluated(n)
        self._guard(self._advance, i, slot, request, chunk)

    def _guard(self, action: Callable[..., None], i: int, slot: Slot, request: Request, *args: Chunk) -> None:
        """What goes wrong with one request is its own end, not its neighbours'."""
        try:
            action(i, slot, request, *args)
        except CorralError as error:
            self._fail([(slot, request, 0)], error)
        except Exception as error:
            traceback.print_exc()
            problem = CorralError(f"internal error of the engine ({type(error).__name__})")
            self._fail([(slot, request, 0)], problem)

    def _advance(self, i: int, slot: Slot, request: Request, chunk: Chunk) -> None:
        """The chunk is in the context now; draw the next token if it was the last one."""
        if request.phase is Phase.PREFILL:
            now = self._clock()
            n_past = len(request.prompt) - len(request.pending)
            self._events.append(Progress(request.id, n_past, request.prompt_ms(now)))
            if chunk.logits:
                self._serve_twins(i, slot, request)
        if chunk.logits:
            self._draw_or_end(i, slot, request)

    def _serve_twins(self, i: int, slot: Slot, request: Request) -> None:
        """Requests that waited for this very prompt get all of it, and begin from the same logits."""
        for twin_slot, twin in self._scheduler.twins(slot, request):
            self._kv.stash(twin_slot, 0)
            if self._kv.copy(slot, twin_slot, len(request.prompt)) < len(request.prompt):
                continue
            twin.start(self._clock(), len(request.prompt))
            report = whole_report(slot.id, twin.n_cached) if twin.task.params.cache_report else None
            self._events.append(Admitted(twin.id, twin_slot.id, twin.n_cached, report))
            self._guard(self._draw_or_end, i, twin_slot, twin)

    def _draw_or_end(self, i: int, slot: Slot, request: Request) -> None:
        if request.sampler is None:
            task = request.task
            request.sampler = self._backend.open_sampler(task.params.sampling, task.prompt, request.grammar)
        if request.is_budget_spent:
            request.stop_type = StopType.LIMIT
            self._finish(slot, request, "")
        else:
            self._draw(i, slot, request)

    def _draw(self, i: int, slot: Slot, request: Request) -> None:
        """The next token, and those that follow from it."""
        sampler = request.sampler
        assert sampler is not None
        logits, index = self._backend.logits(i), request.n_generated
        repeated = request.repeated_token
        if repeated is None:
            token, probs = sampler.sample(logits, index)
        else:
            sampler.force(logits, index, repeated)
            token, probs = repeated, None
        text = self._add(slot, request, token, probs)
        for token in sampler.forced(self._room_for_forced(slot, request)):
            request.n_forced += 1
            text += self._add(slot, request, token, None)
            if request.is_stopped:
                break
        if not request.is_repeating and (not request.text.is_mid_character or request.is_stopped):
            self._events.append(request.take_tokens(text, self._clock()))
        if request.is_stopped:
            self._finish(slot, request, request.text.finish())
        else:
            sampler.prepare()

    def _add(self, slot: Slot, request: Request, token: int, probs: TokenProbs | None) -> str:
        """Take a token into the answer; returns the text it completes, unless a lost engine has sent that."""
        request.add(token, probs, self._clock())
        text = request.text.feed(self._piece(request, token))
        self._check_stop(slot, request, token, text)
        return "" if request.is_repeating else text

    def _room_for_forced(self, slot: Slot, request: Request) -> int:
        """How many more tokens may follow without a look at their logits."""
        params = request.task.params
        if request.is_stopped or params.sampling.n_probs:
            return 0
        room = self._backend.n_ctx - 1 - len(slot.tokens) - len(request.pending)
        return room if params.n_predict < 0 else min(room, params.n_predict - request.n_generated)

    def _piece(self, request: Request, token: int) -> bytes:
        vocab = self._backend.vocab
        return b"" if vocab.is_eog(token) else vocab.piece(token, request.shows(token))

    def _check_stop(self, slot: Slot, request: Request, token: int, text: str) -> None:
        params = request.task.params
        is_late = 0 < params.t_max_predict_ms < request.predicted_ms()
        assert request.sampler is not None
        if self._backend.vocab.is_eog(token) or request.sampler.is_finished:
            request.stop_type = StopType.EOS
        elif request.text.stopping_word:
            request.stop_type = StopType.WORD
        elif self._is_context_full(slot, request) and not self._may_shift(request):
            request.truncated = True
            request.stop_type = StopType.LIMIT
        elif request.is_budget_spent or request.text.is_under_indented or (is_late and "\n" in text):
            request.stop_type = StopType.LIMIT

    def _finish(self, slot: Slot, request: Request, rest: str) -> None:
        self._events.append(request.done(len(slot.tokens), rest, self._clock()))
        self._scheduler.release(slot)
        request.close()

    def _fail(self, work: Sequence[Work], error: CorralError) -> None:
        """Give up the requests of a batch that could not be evaluated; their slots start afresh."""
        for slot, request, _ in work:
            if slot.request is request:
                self._events.append(Failed(request.id, error.info()))
                self._scheduler.release(slot)
                self._kv.trim(slot, 0)
                request.close()

    def _is_context_full(self, slot: Slot, request: Request) -> bool:
        return len(slot.tokens) + len(request.pending) >= self._backend.n_ctx

    def _may_shift(self, request: Request) -> bool:
        return (
            self._settings.context_shift
            and self._kv.can_shift
            and request.task.params.n_predict != UNTIL_CONTEXT_FULL
        )

    def _make_room_in_contexts(self) -> None:
        """Shift the contexts that have no room for the next token."""
        for slot, request in self._scheduler.running(Phase.GENERATING):
            if self._is_context_full(slot, request):
                params = request.task.params
                n_keep, n_discard = plan_shift(
                    len(slot.tokens),
                    self._backend.n_ctx,
                    len(request.prompt),
                    params.n_keep,
                    params.n_discard,
                    self._backend.vocab.adds_bos,
                )
                self._kv.shift(slot, n_keep, n_discard)
                slot.moved_from = min(slot.moved_from, n_keep)
                request.truncated = True

    def _rewind(self, work: Sequence[Work]) -> None:
        """A batch came to nothing: back to where it began, or all the way where the model cannot."""
        for slot, request, n in work:
            if self._kv.rewind(slot):
                continue
            if request.phase is Phase.PREFILL:
                request.start(self._clock(), n_cached=0)
            else:
                self._fail([(slot, request, n)], CorralError("the context was lost in a decode that failed"))

    def _relieve(self, work: Sequence[Work]) -> None:
        """Too few KV cells are free: give up cached sequences, then shrink the prompt chunks, then swap out
        the newest request."""
        cached = self._scheduler.evictable
        if cached:
            self._kv.evict(cached[0])
            return
        if self._scheduler.due:
            return  # they had better have their turn first
        if self._prompt_cap > FLOOR and any(n > FLOOR for _, _, n in work):
            self._prompt_cap //= 2
            return
        holders = [*self._scheduler.running(Phase.PREFILL), *self._scheduler.running(Phase.GENERATING)]
        newest, _ = max(holders, key=lambda pair: pair[1].order)
        if len(holders) < 2 or not self._scheduler.preempt(newest):
            self._fail(work, CorralError("the context is full and nothing can be moved out of it"))

    def _flush(self) -> None:
        if self._events:
            self._emit(self._events)
            self._events = []
