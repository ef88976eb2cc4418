"""The engine: admit, plan, decode, sample, emit. One thread calls everything here but `abort_if_running`.

Knows tokens and text, no JSON and no HTTP. Effects go to a `Backend`, results to the `emit` it was given.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias
from weakref import WeakSet

import msgspec
import numpy as np

from corral.core.chunk import Chunk, DecodeStatus, TokenArray
from corral.core.errors import ContextExceeded, CorralError
from corral.core.media import has_media
from corral.core.result import Event, Failed, Heartbeat, MediaLayout
from corral.core.settings import EngineSettings
from corral.core.task import (
    Cancel,
    Command,
    Embed,
    FreeAdapter,
    LayoutMedia,
    LoadAdapter,
    SlotAction,
    Stop,
    Task,
)
from corral.engine.action import Actions
from corral.engine.adapter import AdapterRegistry
from corral.engine.batch import MIN_PREFILL, BatchPlan, BatchShape, Part, Prompt, Token, plan_batches
from corral.engine.cost import Load, load_of
from corral.engine.decoder import Decoder
from corral.engine.embedder import Embedder
from corral.engine.generation import Generation
from corral.engine.grouping import Grouping
from corral.engine.job import Jobs, Steps
from corral.engine.kv import KvStore
from corral.engine.media import MediaEncoder
from corral.engine.ports import Backend
from corral.engine.probe import probe_exact
from corral.engine.request import Phase, Request
from corral.engine.scheduler import Scheduler
from corral.engine.ses1 import Ses1
from corral.engine.slot import Slot
from corral.engine.speculation import Speculation

Work: TypeAlias = tuple[Slot, Request, int]  # so many of a request's pending tokens, and of its draft


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
        self._speculation = Speculation(backend, settings, self._decoder.cost)
        self._generation = Generation(
            backend, settings, self._scheduler, self._kv, self._speculation, self._note, clock
        )
        self._adapters = AdapterRegistry(backend.adapters)
        self._media = MediaEncoder(backend.projector, settings.cache_media_mib << 20, wake)
        self._requests: WeakSet[Request] = WeakSet()
        self._jobs = Jobs(wake)
        self._embedder = Embedder(backend.open_encoder, emit, clock, self._media)
        self.is_stopped = False
        self._has_rested = False  # the last step found nothing that it could evaluate
        self._n_slots = backend.n_seq
        self._prompt_cap = backend.n_prefill_max  # shrinks while cells are short
        self._events: list[Event] = []
        self._n_commands = 0

    @property
    def has_work(self) -> bool:
        is_busy = self._embedder.has_work or self._media.is_busy
        return self._scheduler.has_work or bool(self._jobs) or is_busy

    @property
    def is_waiting(self) -> bool:
        """All that is left to do waits for other threads, or behind something that does."""
        if self._media.is_busy:
            has_to_wait = self._has_rested and self._media.is_waiting
        else:
            is_running = self._scheduler.is_running or self._embedder.has_work
            has_to_wait = bool(self._jobs) and not is_running
        return has_to_wait and self._jobs.are_waiting(self._idle())

    def handle(self, command: Command) -> None:
        self._n_commands += 1
        if isinstance(command, Cancel):
            self._cancel(command.task_id)
        elif isinstance(command, Embed):
            self._embedder.add(command)
        elif isinstance(command, SlotAction):
            self._events += self._jobs.start(command.id, self._n_commands, self._actions.steps(command))
            self._reserve_slots()
        elif isinstance(command, LayoutMedia):
            self._events += self._jobs.start(command.id, self._n_commands, self._layout_media(command))
        elif isinstance(command, LoadAdapter | FreeAdapter):
            self._events += self._adapters.handle(command)
        elif isinstance(command, Stop):
            self._kv.flush([slot for slot in self._scheduler.slots if slot.is_idle])
            self._speculation.flush()
            self.is_stopped = True
        else:
            self._submit(command)
        self._tidy_adapters()
        self._flush()

    def abort_if_running(self, task_id: int) -> None:
        """From any thread: cut the decode short if all it does is this task's prompt or embedding."""
        self._decoder.abort_if_running(task_id)
        self._embedder.abort_if_running(task_id)

    def heartbeat(self) -> Heartbeat:
        """From any thread: how long the decode under way has been running."""
        beats = (self._decoder.heartbeat(), self._embedder.heartbeat(), self._media.heartbeat())
        return next((heartbeat for heartbeat in beats if heartbeat.decode_ms), beats[0])

    def warm_up(self) -> None:
        """Touch the weights and take a first measure of what evaluating costs."""
        slot = self._scheduler.slots[0]
        for n in (2, MIN_PREFILL, 1):
            started = self._clock()
            self._backend.decode([Chunk(slot.id, 0, np.zeros(n, np.int32), logits=True)])
            self._backend.trim(slot.id, 0)
            load = Load(n_generating=1) if n == 1 else Load(n_prompt=n)
            self._decoder.cost.observe(load, (self._clock() - started) * 1e3)
        if self._settings.drafts and self._speculation.n_exact == 1 and self._backend.can_cut:
            self._speculation.n_exact = probe_exact(self._backend, self._decoder.cost, self._clock)

    def step(self) -> None:
        """One round for everybody: running generations get their token, prompts what is left of the time."""
        self._media.pause()
        self._take_encoded()
        self._reserve_slots()
        self._events += self._scheduler.admit(self._clock())
        if self._jobs:
            self._events += self._jobs.run(self._idle())
            self._reserve_slots()
            self._events += self._scheduler.admit(self._clock())
        self._events += self._scheduler.queue_event(self._clock())
        for request in self._scheduler.take_stuck():
            self._events.append(
                Failed(request.id, CorralError("the context is full: its state could not be restored").info())
            )
            request.close()
        self._want_encoded()
        self._generation.make_room()
        self._flush()
        batches = self._plan()
        for batch in batches:
            self._run(batch)
            self._flush()
        has_embedded = False
        if self._embedder.has_work:
            has_streams = bool(self._scheduler.running(Phase.GENERATING))
            has_embedded = self._embedder.step(self._headroom_ms() if has_streams else math.inf)
        self._tidy_adapters()
        self._has_rested = not (batches or has_embedded)
        if self._has_rested:
            self._media.go_on()
        else:
            self._media.go_on_for(self._headroom_ms())

    def _headroom_ms(self) -> float:
        """For how long running streams can be kept waiting; prompts, embeddings and the projector share that
        evenly."""
        prompts = self._scheduler.running(Phase.PREFILL)
        n_sharing = bool(prompts) + self._embedder.has_work + self._media.is_busy
        return self._decoder.cost.headroom_ms(self._settings.max_itl_ms) / max(1, n_sharing)

    def _layout_media(self, command: LayoutMedia) -> Steps:
        return MediaLayout(command.id, (yield self._media.layout_media(command.media)))

    def _want_encoded(self) -> None:
        """Have the projector work on what prompts need soon."""
        for _, request in self._scheduler.running(Phase.PREFILL):
            if request.media is not None:
                self._media.want(request.media, request.n_past)

    def _take_encoded(self) -> None:
        """What the projector has done is at hand now, or has failed."""
        for media, error in self._media.collect():
            self._embedder.fail(media, error)
            for slot, request in self._scheduler.running(Phase.PREFILL):
                if request.media is media:
                    self._generation.fail(slot, request, error)

    def _submit(self, task: Task) -> None:
        try:
            request = self._open(task)
        except CorralError as error:
            self._events.append(Failed(task.id, error.info()))
            return
        if not task.prompt:
            # compat: /completion: nothing to continue is answered by nothing.
            self._events.append(request.done(0, "", self._clock()))
        else:
            self._events += self._jobs.start(task.id, request.arrival, self._prepare(request))

    def _open(self, task: Task) -> Request:
        """A request, with its follower if it has one; raises if it cannot be served."""
        tokens = np.array(task.prompt, np.int32)
        is_pictured = bool(task.media) or has_media(tokens)
        media = self._media.open(task.fd, (task.media, tokens)) if is_pictured else [None]
        n_ctx, guidance = self._backend.n_ctx, task.params.guidance
        if guidance is not None and guidance.scale == 1.0:
            guidance = None
        for prompt in (task.prompt, guidance.negative if guidance else ()):
            if len(prompt) >= n_ctx:
                raise ContextExceeded(len(prompt), n_ctx)
        lora_key = self._backend.adapters.lora_key(task.params.lora)
        request = Request(task, self._n_commands, lora_key)
        (request.media,) = media
        self._requests.add(request)
        if guidance is not None:
            self._backend.reserve(2 * self._n_slots)
            self._scheduler.add_negatives(n_ctx)
            params = msgspec.structs.replace(task.params, guidance=None, n_system=0, cache_report=False)
            behind = msgspec.structs.replace(task, prompt=list(guidance.negative), params=params, media=[])
            request.pair_with(Request(behind, self._n_commands, lora_key))
        return request

    def _tidy_adapters(self) -> None:
        if self._adapters.is_waiting:
            in_use = [request.task.params.lora for request in self._requests]
            self._adapters.tidy([*in_use, *self._embedder.adapters_in_use])

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
        runs = [pair for pair in answers if len(pair[1].pending) > 1]
        streams = [pair for pair in answers if len(pair[1].pending) == 1]
        for slot, request in streams:
            request.draft = self._propose(slot, request, len(streams))
        drafts = [(slot, request) for slot, request in streams if len(request.draft)]
        tokens = [Token(s.id, r.lora_key) for s, r in streams if not len(r.draft)]
        prompts = [
            self._prompt(slot, request)
            for slot, request in [*runs, *self._newcomers(answers)]
            if len(request.pending) and not request.is_stalled
        ]
        budget = self._backend.n_prefill_max
        if streams:
            n_groups = len({token.lora_key for token in tokens}) + len(drafts)
            headroom_ms = self._headroom_ms() - (n_groups - 1) * self._decoder.cost.decode_ms
            budget = self._decoder.cost.n_tokens_in(headroom_ms)
        batches = plan_batches(tokens, prompts, min(budget, self._prompt_cap), self._shape)
        return [(Part(slot.id, 1 + len(request.draft)),) for slot, request in drafts] + batches

    def _newcomers(self, answers: Sequence[tuple[Slot, Request]]) -> Sequence[tuple[Slot, Request]]:
        """Whose prompts may be evaluated in this step."""
        if answers and not self._settings.cont_batching:
            return []
        return self._scheduler.running(Phase.PREFILL)

    def _prompt(self, slot: Slot, request: Request) -> Prompt:
        """What is left of a prompt, up to where media begin or end."""
        n, piece = min(len(request.pending), self._kv.room(slot)), request.piece
        if piece is None:
            return Prompt(slot.id, n, request.lora_key)
        return Prompt(slot.id, min(n, piece.n), request.lora_key, piece.is_alone, piece.is_whole)

    def _chunk(self, slot: Slot, request: Request, n: int) -> Chunk:
        """So many of a request's pending tokens, and what they are evaluated as."""
        piece = request.piece
        pos = self._kv.position(slot, piece.origin if piece is not None else None)
        rows = piece.rows(n) if piece is not None else None
        return Chunk(slot.id, pos, request.chunk(n), request.n_logits(n), rows)

    def _propose(self, slot: Slot, request: Request, n_streams: int) -> TokenArray:
        """What may follow the token that a stream is about to evaluate."""
        if not self._speculation.n_exact > 1 or not self._kv.can_rewind(slot):
            return request.draft[:0]
        return self._speculation.propose(slot, request, n_streams, self._generation.room_ahead(slot, request))

    def _run(self, batch: BatchPlan) -> None:
        """Evaluate one planned batch and take what comes out of it."""
        parts = [(self._scheduler.slots[part.slot], part.n) for part in batch]
        # An earlier batch of the step may have ended a request, or swapped it out.
        work = [(s, s.request, n) for s, n in parts if s.request is not None and s.request.swapped is None]
        if not work:
            return
        chunks = [self._chunk(slot, request, n) for slot, request, n in work]
        try:
            only = work[0][1].positive or work[0][1]
            self._backend.apply_lora(only.task.params.lora)
            is_own = len(work) == 1 and work[0][2] > 1
            status = self._decoder.decode(chunks, load_of(chunks), only.id if is_own else None)
        except CorralError as error:
            self._fail(work, error)
            return
        if status is not DecodeStatus.OK:
            self._rewind(work)
        if status is DecodeStatus.NO_ROOM:
            self._relieve(work)
        if status is DecodeStatus.OK:
            self._prompt_cap = self._backend.n_prefill_max
            for i, (slot, request, n) in enumerate(work):
                if slot.request is request:
                    self._kv.extend(slot, request.pending[:n])
                    request.evaluated(n)
                    self._generation.advance(i, slot, request, chunks[i])
            self._generation.clean_up()

    def _fail(self, work: Sequence[Work], error: CorralError) -> None:
        for slot, request, _ in work:
            self._generation.fail(slot, request, error)

    def _rewind(self, work: Sequence[Work]) -> None:
        """A batch came to nothing: back to where it began, or all the way where the model cannot."""
        for slot, request, n in work:
            if request.piece is not None and request.piece.is_in_flat:
                self._kv.trim(slot, 0)  # a picture's tokens share a position: it cannot be cut between them
            elif self._kv.rewind(slot):
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
        if self._prompt_cap > MIN_PREFILL and any(n > MIN_PREFILL for _, _, n in work):
            self._prompt_cap //= 2
            return
        holders = [*self._scheduler.running(Phase.PREFILL), *self._scheduler.running(Phase.GENERATING)]
        newest, request = max(holders, key=lambda pair: pair[1].arrival)
        is_alone = all(other.arrival == request.arrival for _, other in holders)
        if is_alone or not self._scheduler.preempt(newest):
            self._fail(work, CorralError("the context is full and nothing can be moved out of it"))

    def _note(self, event: Event) -> None:
        self._events.append(event)

    def _flush(self) -> None:
        if self._events:
            self._emit(self._events)
            self._events = []
