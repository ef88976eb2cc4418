"""Embedding: inputs of all orders that wait, packed into full batches.

An input that is longer than a batch is evaluated in pieces, in turns with the others.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from corral.core.chunk import Chunk, DecodeStatus, FloatArray, TokenArray
from corral.core.errors import CorralError, NotSupported
from corral.core.media import has_media, n_positions
from corral.core.modifier import AdapterConfig
from corral.core.result import Beat, Begun, Embedded, Event, Failed, Vectors
from corral.core.task import Embed
from corral.engine.batch import FLOOR, chunk_size
from corral.engine.cost import Load
from corral.engine.decoder import Decoder
from corral.engine.media import MediaDesk
from corral.engine.pack import Input, merge, n_up_to, plan_limits, plan_pack
from corral.engine.ports import Encoder
from corral.engine.prompt_media import Piece, PromptMedia

_LONG_SEQ = 0


class _Order:
    """Mutable: what is left to do for an order. `media`: of the inputs that have some, by their numbers."""

    def __init__(self, order: Embed, inputs: list[TokenArray], media: dict[int, PromptMedia]) -> None:
        self.id = order.id
        self.lora = order.lora
        self.inputs = inputs
        self.media = media
        self.waiting = sorted(Input(len(tokens), i) for i, tokens in enumerate(inputs) if i not in media)
        self.n_left = len(self.inputs)
        self.has_begun = False


@dataclass(slots=True)
class _Long:
    """Mutable: an input that is evaluated in pieces."""

    order: _Order
    index: int
    media: PromptMedia | None = None
    sizes: list[int] = field(default_factory=list)
    parts: list[FloatArray] = field(default_factory=list)

    @property
    def n_done(self) -> int:
        return sum(self.sizes)

    @property
    def pending(self) -> TokenArray:
        return self.order.inputs[self.index][self.n_done :]

    def chunk(self, n_most: int) -> Chunk:
        """The next piece; media are pieces of their own."""
        tokens, at = self.order.inputs[self.index], self.n_done
        piece = self.media.piece(at) if self.media is not None else Piece(at, len(tokens))
        n = piece.n if piece.is_whole else chunk_size(piece.n, n_most)
        pos = n_positions(tokens[: piece.origin])
        return Chunk(_LONG_SEQ, pos, tokens[at : at + n], logits=True, encoded=piece.rows(n))


class Embedder:
    """Mutable. One thread calls everything but `abort_if_running` and `beat`."""

    def __init__(
        self,
        open_encoder: Callable[[], Encoder],
        emit: Callable[[list[Event]], None],
        clock: Callable[[], float],
        media: MediaDesk | None = None,
    ) -> None:
        self._open_encoder = open_encoder
        self._media = media or MediaDesk(None)
        self._emit = emit
        self._clock = clock
        self._opened: tuple[Encoder, Decoder] | None = None
        self._orders: list[_Order] = []  # the one whose turn it is comes first
        self._long: _Long | None = None
        self._is_long_turn = False

    @property
    def has_work(self) -> bool:
        return bool(self._orders)

    @property
    def adapters_in_use(self) -> list[AdapterConfig]:
        return [order.lora for order in self._orders]

    def add(self, order: Embed) -> None:
        inputs = [np.array(tokens, np.int32) for tokens in order.inputs]
        try:
            self._orders.append(_Order(order, inputs, self._open_media(order, inputs)))
        except CorralError as error:
            self._emit([Failed(order.id, error.info())])

    def _open_media(self, order: Embed, inputs: Sequence[TokenArray]) -> dict[int, PromptMedia]:
        media = order.media or [[] for _ in inputs]
        pictured = [i for i, tokens in enumerate(inputs) if media[i] or has_media(tokens)]
        if not pictured:
            return {}
        opened = self._media.open(order.fd, *((media[i], inputs[i]) for i in pictured))
        if self._open()[0].is_whole:
            raise NotSupported("a model that looks at a whole input at once cannot embed images or sounds")
        return dict(zip(pictured, opened, strict=True))

    def fail(self, media: PromptMedia, error: CorralError) -> None:
        """Media cannot be encoded."""
        orders = [order for order in self._orders if media in order.media.values()]
        if orders:
            self._fail(orders, error)

    def cancel(self, id: int) -> None:
        self._remove([order for order in self._orders if order.id == id])

    def abort_if_running(self, id: int) -> None:
        """From any thread: cut the decode short if it is for this order only."""
        if self._opened is not None:
            self._opened[1].abort_if_running(id)

    def beat(self) -> Beat:
        """From any thread: how long the decode under way has been running."""
        return self._opened[1].beat() if self._opened is not None else Beat(0.0, 0.0)

    def warm_up(self) -> None:
        """Touch the weights and take a first measure of what evaluating costs."""
        encoder, decoder = self._open()
        tokens = np.zeros(min(2 * FLOOR, encoder.n_batch), np.int32)
        decoder.decode([Chunk(_LONG_SEQ, 0, tokens, logits=True)], Load(n_prompt=len(tokens)), only_of=None)
        encoder.forget(_LONG_SEQ)

    def step(self, ms: float = math.inf) -> bool:
        """Evaluate one batch, which takes about so long. False: all that is left waits for the projector."""
        try:
            encoder, decoder = self._open()
        except CorralError as error:
            self._fail(self._orders, error)
            return True
        n_budget = decoder.cost.n_tokens_in(ms) if ms < math.inf else None
        n_pack, n_most = plan_limits(encoder.n_batch, encoder.n_pack, encoder.is_whole, n_budget)
        if self._long is None and not encoder.is_whole:
            self._begin_long(encoder, n_most)
        if self._long is None:
            self._begin_pictured(encoder)
        queues = [(order, order.waiting[: n_up_to(n_most, order.waiting)]) for order in self._orders]
        queues = [(order, inputs) for order, inputs in queues if inputs]
        queues = [(order, inputs) for order, inputs in queues if order.lora == queues[0][0].lora]
        if self._long is not None and (self._is_long_turn or not queues):
            self._run_long(self._long, n_most)
        elif queues:
            plan = plan_pack([inputs for _, inputs in queues], n_pack, encoder.n_seq - 1)
            self._run_packed([(queues[i][0], input) for i, input in plan])
        elif any(order.waiting for order in self._orders):
            self._fail(self._orders, CorralError("an input is longer than a batch"))
        else:
            return False
        self._is_long_turn = not self._is_long_turn
        return True

    def _open(self) -> tuple[Encoder, Decoder]:
        """Not before somebody wants to embed: it takes memory."""
        if self._opened is None:
            encoder = self._open_encoder()
            self._opened = encoder, Decoder(encoder, self._clock)
        return self._opened

    def _run_packed(self, work: Sequence[tuple[_Order, Input]]) -> None:
        chunks = [
            Chunk(_LONG_SEQ + 1 + i, 0, order.inputs[input.number], logits=True)
            for i, (order, input) in enumerate(work)
        ]
        vectors = self._decode(chunks, [order for order, _ in work])
        encoder, _ = self._open()
        for chunk in chunks:
            encoder.forget(chunk.seq)
        self._orders = self._orders[1:] + self._orders[:1]
        events: list[Event] = []
        for (order, input), rows in zip(work, vectors, strict=False):
            del order.waiting[bisect_left(order.waiting, input)]
            events += self._finish(order, input.number, rows)
        if events:
            self._emit(events)

    def _begin_long(self, encoder: Encoder, n_tokens: int) -> None:
        """The next of the inputs that are longer than a batch is taken apart."""
        longer = [order for order in self._orders if order.waiting and order.waiting[-1].n > n_tokens]
        for order in longer:
            if self._begin(encoder, _Long(order, order.waiting[-1].number)):
                order.waiting.pop()
                return

    def _begin_pictured(self, encoder: Encoder) -> None:
        """So is one with media, as soon as these are encoded."""
        for order in list(self._orders):
            for index, media in order.media.items():
                self._media.want(media, 0)
                if media.missing(0):
                    continue
                if self._begin(encoder, _Long(order, index, media)):
                    del order.media[index]
                    return
                break

    def _begin(self, encoder: Encoder, long: _Long) -> bool:
        try:
            encoder.reserve(len(long.pending) + encoder.n_batch)
        except CorralError as error:
            self._fail([long.order], error)
            return False
        self._long = long
        self._orders = [*(other for other in self._orders if other is not long.order), long.order]
        return True

    def _run_long(self, long: _Long, n_tokens: int) -> None:
        chunk = long.chunk(n_tokens)
        vectors = self._decode([chunk], [long.order])
        if not vectors:
            self._put_back(long)
            return
        long.sizes.append(len(chunk.tokens))
        long.parts += vectors
        if not len(long.pending):
            if long.media is not None:
                long.media.close()
            self._drop_long()
            encoder, _ = self._open()
            self._emit(self._finish(long.order, long.index, merge(encoder.pooling, long.parts, long.sizes)))

    def _decode(self, chunks: Sequence[Chunk], orders: Sequence[_Order]) -> list[FloatArray]:
        """The vectors of a batch; none if it was cut short or failed."""
        encoder, decoder = self._open()
        new = {order.id: order for order in orders if not order.has_begun}.values()
        if new:
            # An engine that dies of them must not get them again and again: the front has to know before.
            self._emit([Begun(order.id) for order in new])
            for order in new:
                order.has_begun = True
        is_one = all(order is orders[0] for order in orders)
        try:
            encoder.adapt(orders[0].lora)
            load = Load(n_prompt=sum(len(chunk.tokens) for chunk in chunks))
            status = decoder.decode(chunks, load, only_of=orders[0].id if is_one else None)
            if status is DecodeStatus.NO_ROOM:
                raise CorralError("there is no room to embed this")
            return encoder.vectors() if status is DecodeStatus.OK else []
        except CorralError as error:
            self._fail(orders, error)
            return []

    def _finish(self, order: _Order, index: int, rows: FloatArray) -> list[Event]:
        """An input is done, and the order with its last one."""
        order.n_left -= 1
        vectors = Vectors(task_id=order.id, index=index, data=rows.tobytes())
        if order.n_left:
            return [vectors]
        self._orders.remove(order)
        return [vectors, Embedded(order.id)]

    def _fail(self, orders: Sequence[_Order], error: CorralError) -> None:
        ids = dict.fromkeys(order.id for order in orders)
        self._remove(orders)
        self._emit([Failed(id, error.info()) for id in ids])

    def _remove(self, orders: Sequence[_Order]) -> None:
        self._orders = [order for order in self._orders if order not in orders]
        for media in [media for order in orders for media in order.media.values()]:
            media.close()
        if self._long is not None and self._long.order in orders:
            self._drop_long()

    def _put_back(self, long: _Long) -> None:
        """It has to begin again: nobody knows how much of it is in the context."""
        if long.media is not None:
            long.order.media[long.index] = long.media
        else:
            insort(long.order.waiting, Input(len(long.order.inputs[long.index]), long.index))
        self._drop_long()

    def _drop_long(self) -> None:
        self._long = None
        encoder, _ = self._open()
        encoder.forget(_LONG_SEQ)
