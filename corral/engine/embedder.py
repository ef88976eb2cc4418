"""Embedding: inputs of all waiting tasks, packed into full batches.

An input longer than a batch is evaluated in chunks, in turns with the others.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from corral.core.chunk import Chunk, DecodeStatus, FloatArray, TokenArray
from corral.core.errors import CorralError, InvalidRequest
from corral.core.media import has_media, n_positions
from corral.core.modifier import AdapterConfig
from corral.core.result import Begun, Decodes, Embedded, Event, Failed, Heartbeat, Vectors
from corral.core.task import Command, Embed
from corral.engine.batch import MIN_PREFILL, chunk_size
from corral.engine.coroutine import Reservations
from corral.engine.cost import CostModel, Load
from corral.engine.decoder import Decoder
from corral.engine.media import MediaEncoder
from corral.engine.pack import Input, merge, n_up_to, plan_limits, plan_pack
from corral.engine.ports import Encoder
from corral.engine.prompt_media import PromptMedia, Segment
from corral.engine.worker import PlannedBatch, Worker

_LONG_SEQ = 0


class _Embedding:
    """Mutable: the remaining inputs of a task. `media`: by number, for inputs that have some."""

    def __init__(self, task: Embed, inputs: list[TokenArray], media: dict[int, PromptMedia]) -> None:
        self.id = task.id
        self.lora = task.lora
        self.is_batch = task.is_batch
        self.inputs = inputs
        self.media = media
        self.waiting = sorted(Input(len(tokens), i) for i, tokens in enumerate(inputs) if i not in media)
        self.n_left = len(self.inputs)
        self.has_begun = False


@dataclass(slots=True)
class _Long:
    """Mutable: an input that is evaluated in chunks."""

    embedding: _Embedding
    index: int
    media: PromptMedia | None = None
    sizes: list[int] = field(default_factory=list)
    parts: list[FloatArray] = field(default_factory=list)

    @property
    def n_done(self) -> int:
        return sum(self.sizes)

    @property
    def pending(self) -> TokenArray:
        return self.embedding.inputs[self.index][self.n_done :]

    def chunk(self, n_most: int) -> Chunk:
        """Return the next chunk; each media item is a chunk of its own."""
        tokens, at = self.embedding.inputs[self.index], self.n_done
        segment = self.media.segment(at) if self.media is not None else Segment(at, len(tokens))
        n = segment.n if segment.is_whole else chunk_size(segment.n, n_most)
        pos = n_positions(tokens[: segment.origin])
        return Chunk(_LONG_SEQ, pos, tokens[at : at + n], logits=True, encoded=segment.rows(n))


class Embedder(Worker):
    """Mutable."""

    handles = (Embed,)

    def __init__(
        self,
        open_encoder: Callable[[], Encoder],
        clock: Callable[[], float],
        media: MediaEncoder | None = None,
    ) -> None:
        self._open_encoder = open_encoder
        self._media = media or MediaEncoder(None)
        self._clock = clock
        self._opened: tuple[Encoder, Decoder] | None = None
        self._embeddings: list[_Embedding] = []  # the one whose turn it is comes first
        self._long: _Long | None = None
        self._is_long_turn = False
        self._events: list[Event] = []

    @property
    def has_work(self) -> bool:
        return bool(self._embeddings)

    @property
    def is_urgent(self) -> bool:
        return any(not embedding.is_batch for embedding in self._embeddings)

    @property
    def _active(self) -> list[_Embedding]:
        """What may run in this step: lines of batches pause while there is something else."""
        return [each for each in self._embeddings if not (self.yields and each.is_batch)]

    @property
    def adapters_in_use(self) -> list[AdapterConfig]:
        return [embedding.lora for embedding in self._embeddings]

    def handle(self, command: Command, _arrival: int) -> None:
        assert isinstance(command, Embed)
        inputs = [np.array(tokens, np.int32) for tokens in command.inputs]
        self._embeddings.append(_Embedding(command, inputs, self._open_media(command, inputs)))

    def _open_media(self, task: Embed, inputs: Sequence[TokenArray]) -> dict[int, PromptMedia]:
        media = task.media or [[] for _ in inputs]
        with_media = [i for i, tokens in enumerate(inputs) if media[i] or has_media(tokens)]
        if not with_media:
            return {}
        opened = self._media.open(task.fd, *((media[i], inputs[i]) for i in with_media))
        if self._open()[0].is_whole:
            raise InvalidRequest("a model that evaluates whole inputs at once cannot embed images or audio")
        return dict(zip(with_media, opened, strict=True))

    def admit(self, _now: float, _reserved: Reservations) -> Sequence[Event]:
        """Fail tasks whose media cannot be encoded."""
        for embedding in list(self._embeddings):
            error = next((media.error for media in embedding.media.values() if media.error), None)
            if error is not None:
                self._fail([embedding], error)
        return self._take_events()

    def cancel(self, task_id: int) -> None:
        self._remove([embedding for embedding in self._embeddings if embedding.id == task_id])

    def abort_if_running(self, task_id: int) -> None:
        if self._opened is not None:
            self._opened[1].abort_if_running(task_id)

    @property
    def decodes(self) -> Decodes:
        return self._opened[1].decodes if self._opened is not None else Decodes(0, 0)

    def heartbeat(self) -> Heartbeat:
        return self._opened[1].heartbeat() if self._opened is not None else Heartbeat(0.0, 0.0)

    def warm_up(self) -> None:
        """Touch the weights and measure a first cost of evaluation."""
        encoder, decoder = self._open()
        tokens = np.zeros(min(2 * MIN_PREFILL, encoder.n_batch), np.int32)
        decoder.decode([Chunk(_LONG_SEQ, 0, tokens, logits=True)], Load(n_prompt=len(tokens)), only_of=None)
        encoder.forget(_LONG_SEQ)

    def plan(self, ms: float) -> Sequence[PlannedBatch]:
        """Plan one batch of about `ms`; none while all remaining inputs wait for the projector."""
        run = self._plan_batch(ms) if self._active else None
        if run is not None:
            self._is_long_turn = not self._is_long_turn
        begun = self._take_events()
        if run is None and not begun:
            return ()
        return [PlannedBatch(run or list, begun)]

    def _plan_batch(self, ms: float) -> Callable[[], list[Event]] | None:
        try:
            encoder, decoder = self._open()
        except CorralError as error:
            self._fail(self._embeddings, error)
            return None
        n_budget = decoder.cost.n_tokens_in(ms) if ms < math.inf else None
        n_pack, n_most = plan_limits(encoder.n_batch, encoder.n_pack, encoder.is_whole, n_budget)
        if self._long is not None and self._long.embedding not in self._active:
            self._put_back(self._long)
        if self._long is None and not encoder.is_whole:
            self._begin_long(encoder, n_most)
        if self._long is None:
            self._begin_with_media(encoder)
        queues = [
            (embedding, embedding.waiting[: n_up_to(n_most, embedding.waiting)]) for embedding in self._active
        ]
        queues = [(embedding, inputs) for embedding, inputs in queues if inputs]
        queues = [(embedding, inputs) for embedding, inputs in queues if embedding.lora == queues[0][0].lora]
        if self._long is not None and (self._is_long_turn or not queues):
            self._begin([self._long.embedding])
            return partial(self._run_long, self._long, self._long.chunk(n_most))
        if queues:
            plan = plan_pack([inputs for _, inputs in queues], n_pack, encoder.n_seq - 1)
            packed = [(queues[i][0], input) for i, input in plan]
            self._begin([embedding for embedding, _ in packed])
            return partial(self._run_packed, packed)
        if any(embedding.waiting for embedding in self._active):
            self._fail(self._active, CorralError("an input is longer than a batch"))
        return None

    def _begin(self, embeddings: Sequence[_Embedding]) -> None:
        """Report that a task begins, before it is evaluated: one that crashes the engine must not be retried
        forever."""
        new = {embedding.id: embedding for embedding in embeddings if not embedding.has_begun}.values()
        for embedding in new:
            self._events.append(Begun(embedding.id))
            embedding.has_begun = True

    def _open(self) -> tuple[Encoder, Decoder]:
        """Open the encoder on first use: it takes memory."""
        if self._opened is None:
            encoder = self._open_encoder()
            self._opened = encoder, Decoder(encoder, CostModel(), self._clock)
        return self._opened

    def _run_packed(self, work: Sequence[tuple[_Embedding, Input]]) -> list[Event]:
        chunks = [
            Chunk(_LONG_SEQ + 1 + i, 0, embedding.inputs[input.number], logits=True)
            for i, (embedding, input) in enumerate(work)
        ]
        vectors = self._decode(chunks, [embedding for embedding, _ in work])
        encoder, _ = self._open()
        for chunk in chunks:
            encoder.forget(chunk.seq)
        self._embeddings = self._embeddings[1:] + self._embeddings[:1]
        for (embedding, input), rows in zip(work, vectors, strict=False):
            del embedding.waiting[bisect_left(embedding.waiting, input)]
            self._finish(embedding, input.number, rows)
        return self._take_events()

    def _begin_long(self, encoder: Encoder, n_tokens: int) -> None:
        """Begin the next input that is longer than a batch."""
        for embedding in self._active:
            if not embedding.waiting or embedding.waiting[-1].n <= n_tokens:
                continue
            if self._reserve(encoder, _Long(embedding, embedding.waiting[-1].number)):
                embedding.waiting.pop()
                return

    def _begin_with_media(self, encoder: Encoder) -> None:
        """Begin an input with media once they are encoded."""
        for embedding in self._active:
            for index, media in embedding.media.items():
                self._media.want(media, 0)
                if media.missing(0):
                    continue
                if self._reserve(encoder, _Long(embedding, index, media)):
                    del embedding.media[index]
                    return
                break

    def _reserve(self, encoder: Encoder, long: _Long) -> bool:
        try:
            encoder.reserve(len(long.pending) + encoder.n_batch)
        except CorralError as error:
            self._fail([long.embedding], error)
            return False
        self._long = long
        self._embeddings = [
            *(other for other in self._embeddings if other is not long.embedding),
            long.embedding,
        ]
        return True

    def _run_long(self, long: _Long, chunk: Chunk) -> list[Event]:
        vectors = self._decode([chunk], [long.embedding])
        if not vectors:
            self._put_back(long)
            return self._take_events()
        long.sizes.append(len(chunk.tokens))
        long.parts += vectors
        if not len(long.pending):
            if long.media is not None:
                long.media.close()
            self._drop_long()
            encoder, _ = self._open()
            self._finish(long.embedding, long.index, merge(encoder.pooling, long.parts, long.sizes))
        return self._take_events()

    def _decode(self, chunks: Sequence[Chunk], embeddings: Sequence[_Embedding]) -> list[FloatArray]:
        """Evaluate a batch and return its vectors; none if it was aborted or failed."""
        encoder, decoder = self._open()
        is_one = all(embedding is embeddings[0] for embedding in embeddings)
        try:
            encoder.apply_lora(embeddings[0].lora)
            load = Load(n_prompt=sum(len(chunk.tokens) for chunk in chunks))
            status = decoder.decode(chunks, load, only_of=embeddings[0].id if is_one else None)
            if status is DecodeStatus.NO_ROOM:
                raise CorralError("the KV cache has no room for this embedding")
            return encoder.vectors() if status is DecodeStatus.OK else []
        except CorralError as error:
            self._fail(embeddings, error)
            return []

    def _finish(self, embedding: _Embedding, index: int, rows: FloatArray) -> None:
        """Record the vector of an input; the last one ends the task."""
        embedding.n_left -= 1
        self._events.append(Vectors(task_id=embedding.id, index=index, data=rows.tobytes()))
        if not embedding.n_left:
            self._embeddings.remove(embedding)
            self._events.append(Embedded(embedding.id))

    def _fail(self, embeddings: Sequence[_Embedding], error: CorralError) -> None:
        ids = dict.fromkeys(embedding.id for embedding in embeddings)
        self._remove(embeddings)
        self._events += [Failed(id, error.info()) for id in ids]

    def _remove(self, embeddings: Sequence[_Embedding]) -> None:
        self._embeddings = [embedding for embedding in self._embeddings if embedding not in embeddings]
        for media in [media for embedding in embeddings for media in embedding.media.values()]:
            media.close()
        if self._long is not None and self._long.embedding in embeddings:
            self._drop_long()

    def _put_back(self, long: _Long) -> None:
        """Queue an interrupted input again from its start: how much of it is in the context is unknown."""
        if long.media is not None:
            long.embedding.media[long.index] = long.media
        else:
            insort(long.embedding.waiting, Input(len(long.embedding.inputs[long.index]), long.index))
        self._drop_long()

    def _drop_long(self) -> None:
        self._long = None
        encoder, _ = self._open()
        encoder.forget(_LONG_SEQ)

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events
