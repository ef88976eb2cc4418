"""Laws of embedding, on the fake encoder: whatever arrives in whatever order, evaluated in whatever batch."""

from __future__ import annotations

import math
from concurrent.futures import Future
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.chunk import Chunk, DecodeStatus
from corral.core.errors import CorralError
from corral.core.params import GenerationParams
from corral.core.pooling import Pooling
from corral.core.result import Begun, Done, Embedded, Failed, Heartbeat, Vectors
from corral.core.settings import EngineSettings
from corral.core.task import Cancel, Embed, SlotAction, Stop, Task, Verb
from corral.engine.batch import MIN_PREFILL
from corral.engine.embedding_engine import EmbeddingEngine
from corral.engine.generation_engine import GenerationEngine
from tests.tools.examples import examples
from tests.tools.failure import status_of
from tests.unit.engine_harness import embed_alone, grammar, task
from tests.unit.fake import FakeAdapters, FakeBackend, FakeEncoder, SteppedEmbedder, keeping

RANGE = 50  # token ids of an order: they tell whose a chunk is


def order(id: int, *sizes: int) -> Embed:
    return Embed(
        id=id, inputs=[[id * RANGE + (7 * i + k) % RANGE for k in range(n)] for i, n in enumerate(sizes)]
    )


def owner(chunk: Chunk) -> int:
    return int(chunk.tokens[0]) // RANGE


class EmbeddingHarness:
    """An embedder that is stepped by hand. A token takes a millisecond; decodes that fail leave debris."""

    def __init__(self, encoder: FakeEncoder | None = None, **options) -> None:
        self.encoder = encoder or FakeEncoder(**options)
        self.now = 1.0
        self.events: list = []
        self.during_decode = lambda chunks: None
        self._evaluate = self.encoder.decode
        self.encoder.decode = self._decode
        self.open = lambda: self.encoder
        self.embedder = SteppedEmbedder(lambda: self.open(), self.events.extend, lambda: self.now)

    def _decode(self, chunks):
        self.now += sum(len(chunk.tokens) for chunk in chunks) / 1e3
        self.during_decode(chunks)
        status = None
        try:
            status = self._evaluate(chunks)
        finally:
            if status is not DecodeStatus.OK:
                for chunk in chunks:
                    self.encoder.sequences.setdefault(chunk.seq, []).append(-1)
        return status

    def run(self, *orders: Embed, ms: float = math.inf) -> None:
        for one in orders:
            self.embedder.add(one)
        for _ in range(2000):
            if not self.embedder.has_work:
                return
            self.embedder.step(ms)
        raise AssertionError("the embedder does not come to an end")

    def of(self, id: int) -> list:
        return [event for event in self.events if event.task_id == id]

    def rows(self, one: Embed) -> list[np.ndarray]:
        """The answer to an order, which has to be complete."""
        begun, *vectors, embedded = self.of(one.id)
        assert (begun, embedded) == (Begun(one.id), Embedded(one.id))
        assert sorted(vector.index for vector in vectors) == list(range(len(one.inputs)))
        data = {vector.index: vector.data for vector in vectors}
        return [np.frombuffer(data[i], np.float32) for i in range(len(one.inputs))]

    def check(self, one: Embed) -> None:
        """The answer is what each input gives alone."""
        for tokens, row in zip(one.inputs, self.rows(one), strict=True):
            np.testing.assert_allclose(
                row, embed_alone(tokens, self.encoder.pooling, self.encoder.labels), rtol=1e-5
            )

    @property
    def owners(self) -> list[set[int]]:
        return [{owner(chunk) for chunk in batch} for batch in self.encoder.batches]

    @property
    def n_tokens(self) -> list[int]:
        return [sum(len(chunk.tokens) for chunk in batch) for batch in self.encoder.batches]


poolings = st.sampled_from(list(Pooling))
times = st.sampled_from([math.inf, -1.0, 20.0, 30.0, 1000.0])
troubles = st.lists(st.sampled_from([DecodeStatus.OK, DecodeStatus.OK, DecodeStatus.ABORTED]), max_size=12)


@given(
    st.lists(st.lists(st.integers(1, 90), min_size=1, max_size=10), min_size=1, max_size=5),
    poolings,
    st.booleans(),
    st.integers(2, 8),
    st.integers(16, 32),
    troubles,
    st.data(),
)
@examples(150)
def test_answers_are_what_each_input_gives_alone(all_sizes, pooling, is_whole, n_seq, n_pack, statuses, data):
    bench = EmbeddingHarness(pooling=pooling, n_pack=n_pack, n_seq=n_seq, is_whole=is_whole)
    bench.encoder.statuses = statuses
    orders = [order(i, *(min(n, 32) if is_whole else n for n in sizes)) for i, sizes in enumerate(all_sizes)]
    n_events = {}
    for one in orders:
        bench.embedder.add(one)
        for _ in range(data.draw(st.integers(0, 3))):
            if bench.embedder.has_work:
                bench.embedder.step(data.draw(times))
        if data.draw(st.integers(0, 4)) == 0 and Embedded(one.id) not in bench.events:
            bench.embedder.cancel(one.id)
            n_events[one.id] = len(bench.of(one.id))
    bench.run(ms=data.draw(times))
    for one in orders:
        if one.id in n_events:
            assert len(bench.of(one.id)) == n_events[one.id]
        else:
            bench.check(one)
    assert not bench.encoder.sequences


@pytest.mark.parametrize("pooling", list(Pooling))
@pytest.mark.parametrize("n", [1, 31, 32, 33, 40, 41, 100])
def test_every_length_under_every_pooling(pooling, n):
    one = order(1, n, 3)
    bench = EmbeddingHarness(pooling=pooling, labels=["a", "b"])
    bench.run(one)
    bench.check(one)
    assert bench.encoder.n_cells == (32 if n <= 32 else n + 32)


def test_orders_share_a_batch():
    bench = EmbeddingHarness()
    bench.run(order(0, 4, 4), order(1, 8), order(2, 2, 3))
    assert bench.owners == [{0, 1, 2}]


@pytest.mark.parametrize("n_seq", [2, 3])
def test_who_comes_later_need_not_wait_until_the_others_are_done(n_seq):
    bench = EmbeddingHarness(n_seq=n_seq)
    bench.embedder.add(order(0, *[16] * 40))
    bench.embedder.step()
    bench.embedder.add(order(1, 16, 16))
    for _ in range(4):
        bench.embedder.step()
    assert Embedded(1) in bench.events
    assert len(bench.of(0)) < 10


def test_the_front_knows_of_an_order_before_it_is_evaluated():
    bench = EmbeddingHarness(n_seq=3)
    seen = []

    def look(chunks):
        seen.append({owner(chunk) for chunk in chunks})
        begun = [event.task_id for event in bench.events if isinstance(event, Begun)]
        assert sorted(begun) == sorted(set.union(*seen)), "of each one once, of nobody too early"

    bench.during_decode = look
    bench.run(order(0, 80, 4, 4), order(1, 4), order(2, 30, 30), order(3, 60))
    assert set.union(*seen) == {0, 1, 2, 3}


# --- inputs that are longer than a batch


def test_a_long_input_and_short_ones_take_turns():
    bench = EmbeddingHarness()
    long, short = order(0, 100), order(1, *[8] * 14)
    bench.run(long, short)
    assert bench.owners == [{1}, {0}, {1}, {0}, {1}, {0}, {1}, {0}]
    assert [len(chunk.tokens) for batch in bench.encoder.batches for chunk in batch if not chunk.seq] == [
        32,
        32,
        28,
        8,
    ]
    assert bench.encoder.n_cells == 100 + 32
    bench.check(long)
    bench.check(short)


def test_long_inputs_of_one_order_are_evaluated_one_by_one():
    bench = EmbeddingHarness()
    one = order(0, 90, 50, 70, 5)
    bench.run(one)
    bench.check(one)
    assert bench.encoder.n_cells == 90 + 32


@pytest.mark.parametrize("n_short", [0, 40])
def test_long_inputs_of_several_orders_take_turns(n_short):
    bench = EmbeddingHarness()
    bench.run(order(0, *[40] * 10, *[8] * n_short), order(1, 40))
    before = bench.events[: bench.events.index(Embedded(1))]
    long = [
        event for event in before if isinstance(event, Vectors) and event.task_id == 0 and event.index < 10
    ]
    assert len(long) <= 2


# --- time


def test_warming_up_measures_and_leaves_nothing():
    bench = EmbeddingHarness()
    bench.embedder.warm_up()
    assert (bench.events, bench.encoder.sequences) == ([], {})
    bench.run(order(0, *[2] * 40), ms=20.0)
    assert max(bench.n_tokens[1:]) <= 20


@pytest.mark.parametrize(
    ("ms", "n"),
    [(20.5, 20), (27.5, 27), (1000.0, 32), (0.0, MIN_PREFILL), (-5.0, MIN_PREFILL), (math.inf, 32)],
)
@pytest.mark.parametrize("is_whole", [True, False])
def test_batches_take_as_long_as_there_is_time(ms, n, is_whole):
    bench = EmbeddingHarness(n_seq=40, is_whole=is_whole)
    bench.embedder.warm_up()
    bench.run(order(0, *[1] * 90), ms=ms)
    assert bench.n_tokens[1:-1] == [n] * (90 // n)


def test_time_is_short_as_long_as_nothing_was_measured():
    bench = EmbeddingHarness(n_seq=40)
    bench.embedder.add(order(0, *[1] * 90))
    for _ in range(2):
        bench.embedder.step(200.0)
    assert bench.n_tokens == [20, 32]


def test_packs_have_the_best_size_and_long_inputs_the_largest():
    bench = EmbeddingHarness(n_pack=20, n_seq=40)
    bench.run(order(0, *[1] * 60, 30, 64))
    assert bench.n_tokens == [30, 32, 20, 32, 20, 20]


def test_an_input_that_must_not_be_cut_is_evaluated_alone_however_long_it_takes():
    bench = EmbeddingHarness(is_whole=True)
    bench.embedder.warm_up()
    one = order(0, 30, 18, 2, 2, 32)
    bench.run(one, ms=20.5)
    bench.check(one)
    assert bench.n_tokens[1:] == [32, 30, 20, 2]


def test_one_that_may_is_cut_if_time_is_short():
    bench = EmbeddingHarness()
    bench.embedder.warm_up()
    one = order(0, 30)
    bench.run(one, ms=20.5)
    bench.check(one)
    assert bench.n_tokens[1:] == [20, 10]


def test_a_beat_tells_how_long_the_decode_has_been_running():
    bench = EmbeddingHarness()
    assert bench.embedder.heartbeat() == Heartbeat(0.0, 0.0)
    bench.embedder.warm_up()
    beats = []
    bench.during_decode = lambda chunks: beats.append(bench.embedder.heartbeat())
    bench.run(order(0, 10))
    assert [(round(heartbeat.decode_ms, 6), round(heartbeat.predicted_ms, 6)) for heartbeat in beats] == [
        (10.0, 10.0)
    ]
    assert bench.embedder.heartbeat().decode_ms == 0


# --- who leaves


def test_a_waiting_order_is_cancelled():
    bench = EmbeddingHarness(n_seq=2)
    orders = [order(i, 20) for i in range(3)]
    for one in orders:
        bench.embedder.add(one)
    bench.embedder.cancel(1)
    bench.embedder.cancel(7)
    bench.run()
    assert bench.owners == [{0}, {2}]
    assert not bench.of(1)


def test_cancelling_the_last_order_leaves_no_work():
    bench = EmbeddingHarness()
    bench.embedder.add(order(0, 20))
    bench.embedder.cancel(0)
    assert not bench.embedder.has_work
    assert not bench.encoder.batches


def test_a_long_input_is_forgotten_with_its_order():
    bench = EmbeddingHarness()
    other = order(1, *[20] * 6, 50)
    bench.embedder.add(order(0, 100, 3))
    bench.embedder.add(other)
    while len(bench.encoder.sequences.get(0, [])) < 40:
        bench.embedder.step()
    n_events = len(bench.of(0))
    bench.embedder.cancel(0)
    assert not bench.encoder.sequences
    n_batches = len(bench.encoder.batches)
    bench.run()
    bench.check(other)
    assert len(bench.of(0)) == n_events
    assert {1} == set.union(*bench.owners[n_batches:])


def test_cancelling_another_order_does_not_disturb_a_long_input():
    bench = EmbeddingHarness()
    long = order(0, 100)
    bench.embedder.add(long)
    bench.embedder.add(order(1, *[20] * 6))
    for _ in range(2):
        bench.embedder.step()
    bench.embedder.cancel(1)
    bench.run()
    bench.check(long)
    assert sum(n for n, owners in zip(bench.n_tokens, bench.owners, strict=True) if owners == {0}) == 100


@pytest.mark.parametrize("sizes", [(5, 6), (100,)])
def test_an_abort_cuts_only_what_is_for_one_order(sizes):
    bench = EmbeddingHarness()
    one = order(0, *sizes)
    aborted = []

    def abort_once(chunks):
        if not aborted:
            bench.embedder.abort_if_running(1)
            assert not bench.encoder.aborts
            bench.embedder.abort_if_running(0)
            aborted.append(bench.encoder.aborts)

    bench.during_decode = abort_once
    bench.run(one)
    assert aborted == [True]
    bench.check(one)
    bench.embedder.abort_if_running(0)
    assert not bench.encoder.aborts


def test_a_batch_of_several_orders_is_not_aborted():
    bench = EmbeddingHarness()

    def abort(chunks) -> None:
        for id in (0, 1):
            bench.embedder.abort_if_running(id)

    bench.during_decode = abort
    bench.run(order(0, 5), order(1, 5))
    assert bench.owners == [{0, 1}]


def test_an_abort_before_anything_was_opened_is_nothing():
    EmbeddingHarness().embedder.abort_if_running(0)


# --- what goes wrong


@pytest.mark.parametrize("n_good", range(7))
def test_what_was_aborted_is_evaluated_again(n_good):
    bench = EmbeddingHarness()
    orders = [order(0, 100, 3), order(1, 20, 20, 20)]
    bench.encoder.statuses = [*[DecodeStatus.OK] * n_good, *[DecodeStatus.ABORTED] * 2]
    bench.run(*orders)
    for one in orders:
        bench.check(one)
    assert not bench.encoder.sequences


BOOM = CorralError("boom", detail=1)


@pytest.mark.parametrize(
    ("trouble", "message"),
    [(BOOM, "boom"), (DecodeStatus.NO_ROOM, "the KV cache has no room for this embedding")],
)
def test_a_batch_that_fails_takes_its_orders_along_and_nobody_else(trouble, message):
    bench = EmbeddingHarness()
    other = order(2, 30, 50)
    bench.encoder.statuses = [trouble]
    bench.run(order(0, 20, 4, 4), order(1, 12, 12), other)
    for id in (0, 1):
        begun, failed = bench.of(id)
        assert (begun, failed.task_id, failed.error.message) == (Begun(id), id, message)
        assert status_of(failed) == 500
    bench.check(other)
    assert {2} == set.union(*bench.owners)
    assert not bench.encoder.sequences


@pytest.mark.parametrize(("n_good", "sizes"), [(0, (40,)), (1, (40,)), (1, (70, 70))])
def test_a_long_input_that_fails_takes_only_its_order_along(n_good, sizes):
    bench = EmbeddingHarness()
    bench.encoder.statuses = [DecodeStatus.OK] * n_good + [BOOM]
    later = order(1, 60, 5)
    bench.run(order(0, *sizes))
    assert bench.of(0) == [Begun(0), Failed(0, BOOM.info())]
    assert not bench.encoder.sequences
    bench.run(later)
    bench.check(later)


def test_a_long_input_ends_with_the_batch_that_failed_its_order():
    bench = EmbeddingHarness()
    bench.encoder.statuses = [DecodeStatus.OK, DecodeStatus.OK, BOOM]
    other = order(1, *[20] * 4)
    bench.run(order(0, 100, *[8] * 9))
    assert isinstance(bench.of(0)[-1], Failed)
    assert not bench.encoder.sequences
    bench.run(other)
    bench.check(other)


def test_room_that_cannot_be_had_is_the_end_of_one_order():
    bench = EmbeddingHarness()

    def refuse(n):
        raise BOOM

    bench.encoder.reserve = refuse
    other = order(1, 32, 20)
    bench.run(order(0, 40, 5), other)
    assert bench.of(0)[-1] == Failed(0, BOOM.info())
    bench.check(other)


def test_an_encoder_that_does_not_open_fails_who_waits_and_is_tried_again():
    bench = EmbeddingHarness()
    encoder = bench.encoder

    def refuse():
        raise BOOM

    bench.open = refuse
    bench.run(order(0, 5), order(1, 50))
    assert bench.events == [Failed(0, BOOM.info()), Failed(1, BOOM.info())]
    bench.open = lambda: encoder
    later = order(2, 5, 50)
    bench.run(later)
    bench.check(later)


# --- the engine that only embeds


def test_an_engine_that_only_embeds_refuses_the_rest():
    events = []
    engine = EmbeddingEngine(FakeEncoder(), FakeAdapters(), events.extend)
    engine.handle(Task(id=1, prompt=[1], params=GenerationParams()))
    engine.handle(SlotAction(id=2, verb=Verb.ERASE, slot=0))
    assert [(event.task_id, status_of(event)) for event in events] == [(1, 501), (2, 501)]
    assert (engine.has_work, engine.is_waiting, engine.is_stopped) == (False, False, False)


def test_an_engine_that_only_embeds_embeds():
    events: list = []
    encoder = FakeEncoder()
    engine = EmbeddingEngine(encoder, FakeAdapters(), keeping(events))
    engine.warm_up()
    engine.handle(order(1, 5))
    engine.handle(order(2, 5))
    assert (engine.has_work, engine.is_waiting) == (True, False)
    engine.handle(Cancel(1))
    engine.step()
    assert not engine.has_work
    assert [type(event) for event in events if event.task_id == 2] == [Begun, Vectors, Embedded]
    assert {event.task_id for event in events} == {2}
    assert engine.heartbeat().decode_ms == 0
    engine.handle(Stop())
    assert engine.is_stopped


# --- beside generations


class Both:
    """An engine that generates and embeds; every token takes a millisecond."""

    def __init__(self, encoder: FakeEncoder, **options) -> None:
        self.backend = FakeBackend(encoder=encoder)
        self.encoder = encoder
        self.now = 1.0
        self.events: list = []
        self.log: list[tuple[str, int]] = []
        for name, evaluator in (("generate", self.backend), ("embed", encoder)):
            evaluator.decode = self._timed(name, evaluator.decode)
        settings = EngineSettings(model="fake", **options)
        self.engine = GenerationEngine(self.backend, settings, keeping(self.events), lambda: self.now)

    def _timed(self, name, decode):
        def timed(chunks):
            n = sum(len(chunk.tokens) for chunk in chunks)
            self.now += n / 1e3
            self.log.append((name, n))
            return decode(chunks)

        return timed

    def run(self) -> None:
        for _ in range(2000):
            if not self.engine.has_work:
                return
            self.engine.step()
        raise AssertionError("the engine does not come to an end")


def test_embedding_and_generating_go_on_side_by_side():
    both = Both(FakeEncoder(n_batch=64, n_seq=40), max_itl_ms=40.0)
    both.engine.handle(task(1, [1, 2, 3], n_predict=20))
    both.engine.handle(task(2, [3, 2, 1], n_predict=20))
    both.engine.step()
    both.log.clear()
    both.engine.handle(order(3, *[4] * 400))
    both.run()
    ends = {event.task_id: i for i, event in enumerate(both.events) if isinstance(event, Done | Embedded)}
    assert ends.keys() == {1, 2, 3}
    assert max(ends[1], ends[2]) < ends[3]
    last = max(i for i, (name, _) in enumerate(both.log) if name == "generate")
    beside = [n for name, n in both.log[:last] if name == "embed"]
    after = [n for name, n in both.log[last:] if name == "embed"]
    assert len(beside) >= 18
    assert max(beside) == 32, "as much as fits into 85 % of the time beside a decode of 2 ms"
    assert after[1:-1] == [64] * len(after[1:-1])
    names = [name for name, _ in both.log[:last]]
    assert all(pair == {"generate", "embed"} for pair in map(set, pairwise(names)))


def test_prompts_and_embeddings_share_what_time_there_is():
    both = Both(FakeEncoder(n_batch=64, n_seq=40), max_itl_ms=50.0)
    both.engine.handle(task(1, [1, 2, 3], n_predict=200))
    both.engine.handle(order(2, 10))
    for _ in range(3):
        both.engine.step()
    both.log.clear()
    both.engine.handle(order(3, *[4] * 400))
    both.engine.handle(task(4, [5] * 200, n_predict=1))
    for _ in range(4):
        both.engine.step()
    prompts = [n for name, n in both.log if name == "generate" and n > 1]
    embedded = [n for name, n in both.log if name == "embed"]
    assert (max(prompts), max(embedded)) == (20, 20), "each half of 85 % of the time beside a decode of 1 ms"


def test_embedding_alone_is_work_for_an_engine():
    both = Both(FakeEncoder())
    both.engine.handle(order(1, 40, 5))
    assert (both.engine.has_work, both.engine.is_waiting) == (True, False)
    both.run()
    assert both.events[-1] == Embedded(1)
    assert (both.engine.has_work, both.engine.is_waiting) == (False, False)


def test_an_engine_with_something_to_embed_does_not_wait():
    both = Both(FakeEncoder())
    both.backend.compile = lambda constraint: Future()
    both.engine.handle(task(1, [1, 2], constraint=grammar("abc")))
    both.engine.step()
    assert both.engine.is_waiting
    both.engine.handle(order(2, 5))
    assert not both.engine.is_waiting
    both.engine.step()
    assert both.events[-1] == Embedded(2)
    both.engine.step()
    assert both.engine.is_waiting


def test_an_engine_forgets_a_cancelled_embedding():
    both = Both(FakeEncoder())
    both.engine.handle(order(1, 100))
    both.engine.step()
    assert both.encoder.sequences
    both.engine.handle(Cancel(1))
    assert not both.engine.has_work
    assert not both.encoder.sequences
    assert both.events == [Begun(1)]


def test_an_engine_aborts_the_embedding_that_was_cancelled():
    both = Both(FakeEncoder())
    decode, seen = both.encoder.decode, []

    def abort(chunks):
        both.engine.abort_if_running(1)
        seen.append((both.encoder.aborts, both.engine.heartbeat().decode_ms >= 0))
        return decode(chunks)

    both.encoder.decode = abort
    both.engine.handle(order(1, 30))
    both.engine.step()
    both.engine.handle(Cancel(1))
    both.engine.step()
    assert seen == [(True, True)]
    assert both.events == [Begun(1)]
    assert not both.engine.has_work


def test_an_encoder_is_opened_when_it_is_needed():
    both = Both(FakeEncoder())
    opened = []
    encoder = both.encoder
    both.engine._embedder._open_encoder = lambda: opened.append(1) or encoder
    both.engine.warm_up()
    both.engine.handle(task(1, [1, 2]))
    both.run()
    assert not opened
    for id in (2, 3):
        both.engine.handle(order(id, 5))
        both.run()
    assert opened == [1]
