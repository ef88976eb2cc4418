"""Laws of the engine for prompts with pictures, on the fake backend and a projector that can wait."""

from __future__ import annotations

import functools
import gc
import os
import pickle
import queue
import threading
import time
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.chunk import DecodeStatus, MediaRows
from corral.core.errors import CorralError
from corral.core.media import (
    cell_positions,
    is_valid_layout,
    n_positions,
    placeholder_tokens,
    runs_in,
    spans_in,
)
from corral.core.media_item import MediaKind
from corral.core.params import Guidance
from corral.core.pooling import Pooling
from corral.core.result import Admitted, Done, Embedded, Failed, MediaLayout, SlotReport, StopType, Vectors
from corral.core.settings import EngineSettings
from corral.core.task import Cancel, Embed, LayoutMedia, SlotAction, Stop, Task, Verb
from corral.engine import loop
from corral.engine.embedding_engine import EmbeddingEngine
from corral.engine.generation_engine import GenerationEngine
from corral.engine.ngram_cache import NgramCache
from tests.tools.examples import examples
from tests.tools.failure import error_of, status_of
from tests.tools.pictures import described_of, is_closed, media_of, noise
from tests.tools.wait import wait_until
from tests.unit.action_harness import SECONDS
from tests.unit.engine_harness import EngineHarness, embed_alone, grammar, task
from tests.unit.fake import FakeAdapters, FakeBackend, FakeEncoder, keeping
from tests.unit.fake_projector import BROKEN, MARK, UNREADABLE, FakeProjector

SMALL, OTHER = noise(1, 8, 8), noise(2, 8, 8)  # four tokens
MIDDLE = noise(3, 16, 16)  # 16
LARGE = noise(4, 24, 24)  # 36: more than a physical batch here
TALL = noise(5, 8, 20)  # two runs of ten
BAD = noise(6, BROKEN, 8)
PICTURES = (SMALL, OTHER, MIDDLE, LARGE, TALL)
TEXT = [2] * 13


class GatedProjector(FakeProjector):
    """Encodes nothing while its door is closed. Unlike at the gate, nobody who pauses it waits for that."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.door = threading.Event()
        self.door.set()

    def encode(self, media, go_on):
        self.door.wait()
        yield from super().encode(media, go_on)

    @property
    def n_encoded(self) -> int:
        return sum(map(len, self.encoded))


class Flat(GatedProjector):
    """The tokens of a picture share a position, and it takes as many as its longer side has."""

    def _runs(self, medium):
        nx, ny = max(1, medium.width // 4), max(1, medium.height // 4)
        return [placeholder_tokens(medium.digest, nx * ny, max(nx, ny), nx * ny > 1)]

    def _rows(self, run, data):
        n = len(run)
        places = np.stack([np.full(n, 0), np.arange(n), np.full(n, 7), np.full(n, 0)]).astype(np.int32)
        return MediaRows(super()._rows(run, data).rows, places, np.ones_like(places), self.is_causal)


class FlatBackend(FakeBackend):
    """Cuts, copies and loads by positions, as a model does where pictures are flat. It cannot shift.

    A decode that fails within a picture leaves a part of it, at a position that it shares with the rest.
    """

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.has_planes = True
        self.can_shift = False

    def decode(self, chunks):
        if self.leaves_debris and chunks[0].encoded is not None:
            self.leaves_debris = False
            self.sequences[chunks[0].seq] += chunks[0].tokens[:4].tolist()
            return DecodeStatus.ABORTED
        moved = []
        for chunk in chunks:
            before = np.array(self.sequences[chunk.seq], np.int32)
            encoded, start = chunk.encoded, len(before)
            if encoded is not None and encoded.places[1, 0]:
                start = runs_in(before)[-1].start
            assert chunk.pos == n_positions(before[:start])
            if encoded is not None:
                at = len(before) - start
                assert encoded.places[1].tolist() == list(range(at, at + len(chunk.tokens)))
            moved.append(msgspec.structs.replace(chunk, pos=len(before)))
        return super().decode(moved)

    def _count(self, seq: int, position: int) -> int:
        """How many tokens come before a position."""
        return int((cell_positions(np.array(self.sequences[seq], np.int32)) < position).sum())

    def trim(self, seq, n):
        return super().trim(seq, self._count(seq, n))

    def share_prefix(self, src, dst, n):
        n = self._count(src, n)
        self.sequences[dst] = list(self.sequences[src])
        return super().trim(dst, n)

    def load(self, seq, state, position):
        tokens = pickle.loads(state[8:])
        assert position == cell_positions(np.array(tokens, np.int32))[-1] + 1
        return super().load(seq, state, len(tokens))


PLAIN, FLAT = GatedProjector(kinds=tuple(MediaKind)), Flat()


def sleep(engine, wakes: threading.Semaphore) -> None:
    """As the engine's loop does."""
    if engine.is_waiting:
        assert wakes.acquire(timeout=SECONDS), "it sleeps for ever"


def run_out(engine, wakes: threading.Semaphore, step) -> None:
    """Until nothing is left to do."""
    deadline = time.monotonic() + SECONDS
    while engine.has_work:
        assert time.monotonic() < deadline, "the engine does not come to an end"
        sleep(engine, wakes)
        step()


class MediaHarness(EngineHarness):
    """A bench with a projector, that sleeps as the engine's loop does."""

    def __init__(
        self, backend: FakeBackend | None = None, projector: GatedProjector | None = None, **options
    ) -> None:
        self.backend: Any = backend or FakeBackend()
        self.projector = self.backend.projector = projector or GatedProjector()
        self.now = 0.0
        self.events: list = []
        self.wakes = threading.Semaphore(0)
        engine_settings = EngineSettings(model="fake", **options)
        self.engine = GenerationEngine(
            self.backend, engine_settings, keeping(self.events), self._clock, self.wakes.release
        )
        self.slots = self.engine._scheduler.slots

    def run(self, *orders) -> None:
        for order in orders:
            self.engine.handle(order)
        run_out(self.engine, self.wakes, self.step)

    def sleep(self) -> None:
        sleep(self.engine, self.wakes)

    def step(self) -> None:
        self.engine.step()
        self.check_mirrors()

    def step_until(self, condition) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline
            self.step()

    def close(self) -> None:
        """Let threads end."""
        self.projector.gate.set()
        self.projector.door.set()
        media = self.engine._media
        media.go_on()
        media._encoding.shutdown()
        media._layouts.shutdown()

    @property
    def decoded(self) -> list:
        return [chunk for batch in self.backend.batches for chunk in batch]


@pytest.fixture
def make():
    labs: list[MediaHarness] = []

    def make_lab(
        backend: FakeBackend | None = None, projector: GatedProjector | None = None, **options
    ) -> MediaHarness:
        labs.append(MediaHarness(backend, projector, **options))
        return labs[-1]

    yield make_lab
    for lab in labs:
        lab.close()


@pytest.fixture
def lab(make):
    return make()


def tokens_of(*parts, projector: GatedProjector = PLAIN) -> tuple[list[int], list]:
    """The tokens of texts and pictures, and the pictures as media without a file."""
    tokens = []
    media = iter(described_of(*(part for part in parts if isinstance(part, np.ndarray))))
    described = []
    for part in parts:
        if isinstance(part, list):
            tokens += part
            continue
        medium = next(media)
        arranged = projector.layout_media(medium)
        tokens += arranged
        n_runs = len(runs_in(np.array(arranged, np.int32)))
        described.append(msgspec.structs.replace(medium, n_runs=n_runs))
    return tokens, described


def pictured(id: int, *parts, projector: GatedProjector = PLAIN, **params) -> Task:
    """A task whose prompt is made of texts and pictures, with its own file."""
    tokens, media = tokens_of(*parts, projector=projector)
    one = task(id, tokens, **params)
    if not media:
        return one
    _, fd = media_of([part for part in parts if isinstance(part, np.ndarray)])
    return msgspec.structs.replace(one, media=media, fd=fd)


def alone(*parts, n_ctx: int = 256, **params) -> list[int]:
    """What such a task gives with the engine to itself."""
    is_flat = params.get("projector") is FLAT
    lab = (
        MediaHarness(FlatBackend(n_ctx=n_ctx), Flat()) if is_flat else MediaHarness(FakeBackend(n_ctx=n_ctx))
    )
    try:
        lab.run(pictured(0, *parts, **params))
        assert lab.done(0)
        return lab.tokens(0)
    finally:
        lab.close()


# One prompt


def test_a_prompt_with_a_picture_is_answered(lab):
    one = pictured(0, TEXT, SMALL, TEXT)
    lab.run(one)
    assert len(lab.tokens(0)) == 8
    assert lab.done(0).stop_type is StopType.LIMIT
    assert lab.backend.sequences[0][: len(one.prompt)] == one.prompt
    assert is_closed(one.fd)
    assert lab.projector.n_encoded == 1


def test_what_is_evaluated_are_the_rows_of_the_pictures(lab):
    lab.run(pictured(0, TEXT, LARGE, TALL, TEXT, SMALL))
    rows = np.concatenate([chunk.encoded.rows for chunk in lab.decoded if chunk.encoded is not None])
    expected = [
        np.resize(pixels.ravel(), (n, 4)) for pixels, n in ((LARGE, 36), (TALL, 10), (TALL, 10), (SMALL, 4))
    ]
    assert rows.tolist() == np.concatenate(expected).tolist()


def test_the_sampler_is_told_of_the_text_only(lab):
    seen, open_sampler = [], lab.backend.open_sampler

    def watched(params, prompt, grammar=None):
        seen.append(list(prompt))
        return open_sampler(params, prompt, grammar)

    lab.backend.open_sampler = watched
    lab.run(pictured(0, TEXT, SMALL, TEXT, TALL))
    assert seen == [[*TEXT, MARK, *TEXT, MARK]]


def test_the_answer_depends_on_the_picture():
    assert alone(TEXT, SMALL, TEXT) != alone(TEXT, OTHER, TEXT)


def test_the_text_before_a_picture_is_evaluated_while_that_is_encoded(lab):
    lab.projector.door.clear()
    one = pictured(0, [1] * 70, SMALL, TEXT)
    lab.engine.handle(one)
    lab.step_until(lambda: lab.engine.is_waiting)
    assert lab.backend.sequences[0] == [*[1] * 70, MARK]
    assert not lab.tokens(0)
    lab.projector.door.set()
    lab.run()
    assert lab.tokens(0) == alone([1] * 70, SMALL, TEXT)


def test_the_first_picture_is_evaluated_while_the_second_is_encoded(lab):
    """They come one by one."""
    lab.projector.gate.clear()
    lab.engine.handle(pictured(0, SMALL, TEXT, MIDDLE))
    lab.step()
    lab.projector.gate.set()
    lab.run()
    assert lab.tokens(0) == alone(SMALL, TEXT, MIDDLE)


def test_an_engine_that_waits_for_its_projector_sleeps_and_is_woken(lab):
    lab.projector.door.clear()
    lab.engine.handle(pictured(0, SMALL, TEXT))
    lab.step_until(lambda: lab.engine.is_waiting)
    assert lab.engine.has_work
    n_batches = len(lab.backend.batches)
    lab.step()
    assert len(lab.backend.batches) == n_batches
    assert lab.engine.is_waiting
    while lab.wakes.acquire(blocking=False):
        pass
    lab.projector.door.set()
    assert lab.wakes.acquire(timeout=SECONDS)
    lab.run()
    assert lab.tokens(0) == alone(SMALL, TEXT)


def test_who_sleeps_is_awake_for_a_text(lab):
    lab.projector.door.clear()
    lab.engine.handle(pictured(0, SMALL, TEXT))
    lab.step_until(lambda: lab.engine.is_waiting)
    lab.engine.handle(task(1, TEXT))
    lab.step_until(lambda: lab.of(1, Done))
    lab.projector.door.set()
    lab.run()
    assert lab.tokens(1) == alone(TEXT)


def test_the_loop_runs_pictured_prompts_to_their_end():
    inbox: loop.Inbox = queue.SimpleQueue()
    events, backend = [], FakeBackend()
    backend.projector = GatedProjector()
    engine = GenerationEngine(
        backend, EngineSettings(model="fake"), keeping(events), wake=lambda: inbox.put(loop.WAKE)
    )
    running = threading.Thread(target=loop.run, args=(engine, inbox))
    running.start()
    try:
        inbox.put(LayoutMedia(9, described_of(SMALL)))
        for i in range(4):
            inbox.put(pictured(i, TEXT, PICTURES[i], TEXT))
        wait_until(lambda: sum(isinstance(event, Done | MediaLayout) for event in events) == 5)
    finally:
        inbox.put(Stop())
        running.join(SECONDS)
    assert not running.is_alive()


def test_no_file_or_memory_is_kept_of_those_who_are_done(lab):
    lab.run(task(0, TEXT))
    before = set(os.listdir("/proc/self/fd"))
    lab.run(*(pictured(i, TEXT, PICTURES[i % 4], TEXT) for i in range(8)))
    lab.run(task(9, TEXT))
    gc.collect()
    wait_until(lambda: set(os.listdir("/proc/self/fd")) <= before)


@pytest.mark.parametrize("n_ctx", [20, 29, 30])
def test_a_prompt_that_is_too_long_is_refused_and_its_file_closed(make, n_ctx):
    lab = make(FakeBackend(n_ctx=n_ctx))
    one = pictured(0, TEXT, MIDDLE)  # 30 tokens
    lab.run(one)
    (failed,) = lab.of(0, Failed)
    assert error_of(failed).type == "exceed_context_size_error"
    assert is_closed(one.fd)


def test_without_a_projector_a_picture_is_refused_and_its_file_closed():
    bench, one = EngineHarness(), pictured(0, TEXT, SMALL)
    bench.run(one)
    (failed,) = bench.of(0, Failed)
    assert "--mmproj" in failed.error.message
    assert is_closed(one.fd)


# Beside others


def test_streams_get_a_token_in_every_step_while_a_picture_is_encoded(make):
    lab = make(max_itl_ms=50)
    lab.engine.handle(task(0, TEXT, n_predict=100))
    lab.engine.handle(task(1, TEXT[:4], n_predict=100))
    lab.step_until(lambda: lab.tokens(0) and lab.tokens(1))
    lab.projector.door.clear()
    lab.engine.handle(pictured(2, TEXT, SMALL, TEXT))
    counts = len(lab.tokens(0)), len(lab.tokens(1))
    for n in range(1, 30):
        lab.step()
        assert (len(lab.tokens(0)), len(lab.tokens(1))) == (counts[0] + n, counts[1] + n)
        assert not lab.engine.is_waiting
    assert not lab.tokens(2)
    lab.projector.door.set()
    lab.run()
    assert lab.tokens(0) == alone(TEXT, n_predict=100)
    assert lab.tokens(2) == alone(TEXT, SMALL, TEXT)


def test_a_picture_is_encoded_in_slices_beside_a_stream(make):
    """Every piece of it in a step of its own, if need be: the stream goes on all the time."""
    lab = make(max_itl_ms=50)
    lab.engine.handle(task(0, TEXT, n_predict=230))
    lab.step_until(lambda: lab.tokens(0))
    lab.engine.handle(pictured(1, SMALL, n_predict=1))
    n = len(lab.tokens(0))
    while not lab.of(1, Done) and lab.engine.has_work:
        lab.step()
        n += 1
        assert len(lab.tokens(0)) == n or lab.of(0, Done)
    lab.run()
    assert lab.of(1, Done)


@pytest.mark.usefixtures("busy_interpreter")
def test_a_slow_stream_does_not_keep_pictures_out(make):
    lab = make(FakeBackend(n_ctx=1024), max_itl_ms=0.5)  # a decode takes a millisecond here
    lab.engine.handle(task(0, TEXT, n_predict=900))
    lab.step_until(lambda: lab.tokens(0))
    lab.engine.handle(pictured(1, SMALL, n_predict=1))
    wait_until(lambda: lab.of(0, Done) or lab.of(1, Done) or lab.step())
    assert lab.of(1, Done)


def test_prompts_with_the_same_picture_have_it_encoded_once(make):
    lab = make(cache_media_mib=0)
    lab.projector.door.clear()
    for i in range(4):
        lab.engine.handle(pictured(i, [1 + i] * 9, MIDDLE, TEXT))
    lab.step_until(lambda: lab.engine.is_waiting)
    lab.projector.door.set()
    lab.run()
    assert lab.projector.n_encoded == 1
    for i in range(4):
        assert lab.tokens(i) == alone([1 + i] * 9, MIDDLE, TEXT)


def test_prompts_that_begin_with_the_same_picture_evaluate_it_once(make):
    lab = make(cache_media_mib=0)
    lab.run(*(pictured(i, TEXT, LARGE, [10 + i] * 9) for i in range(4)))
    assert lab.projector.n_encoded == 1
    assert sum(len(chunk.tokens) for chunk in lab.decoded if chunk.encoded is not None) == 36
    for i in range(4):
        assert lab.tokens(i) == alone(TEXT, LARGE, [10 + i] * 9)


@pytest.mark.parametrize("can_cut", [True, False])
def test_twins_have_one_prefill_and_one_encoding(make, can_cut):
    lab = make(FakeBackend(can_cut=can_cut), cache_media_mib=0)
    tasks = [pictured(i, TEXT, MIDDLE, TEXT, seed=i) for i in range(4)]
    lab.run(*tasks)
    n_prompt = len(tasks[0].prompt)
    assert lab.projector.n_encoded == 1
    assert sum(len(chunk.tokens) for chunk in lab.decoded) == n_prompt + 4 * 7
    for i in range(4):
        assert lab.tokens(i) == alone(TEXT, MIDDLE, TEXT, seed=i)
        assert is_closed(tasks[i].fd)


def test_twins_go_on_without_the_first(lab):
    lab.projector.door.clear()
    for i in range(3):
        lab.engine.handle(pictured(i, TEXT, MIDDLE, seed=i))
    lab.step_until(lambda: lab.engine.is_waiting)
    lab.engine.handle(Cancel(0))
    lab.projector.door.set()
    lab.run()
    for i in (1, 2):
        assert lab.tokens(i) == alone(TEXT, MIDDLE, seed=i)


def test_a_guided_prompt_may_have_pictures(lab):
    one = pictured(0, TEXT, SMALL, TEXT, guidance=Guidance(2.0, (1, 2, 3)))
    lab.run(one, pictured(1, TEXT, OTHER))
    assert len(lab.tokens(0)) == 8
    assert lab.tokens(1) == alone(TEXT, OTHER)


# Again


def test_the_second_turn_has_nothing_to_encode(make):
    lab = make(cache_media_mib=0)
    lab.run(pictured(0, TEXT, LARGE, TEXT, SMALL))
    answer = lab.tokens(0)
    lab.run(pictured(1, TEXT, LARGE, TEXT, SMALL, answer, TEXT))
    assert lab.projector.n_encoded == 2
    (admitted,) = lab.of(1, Admitted)
    assert admitted.n_cached >= len(tokens_of(TEXT, LARGE, TEXT, SMALL)[0])
    assert lab.tokens(1) == alone(TEXT, LARGE, TEXT, SMALL, answer, TEXT)


def test_a_new_picture_of_a_second_turn_is_the_only_one_encoded(make):
    lab = make(cache_media_mib=0)
    lab.run(pictured(0, TEXT, LARGE))
    answer = lab.tokens(0)
    lab.run(pictured(1, TEXT, LARGE, answer, SMALL, TEXT))
    assert lab.projector.n_encoded == 2
    assert lab.tokens(1) == alone(TEXT, LARGE, answer, SMALL, TEXT)


def test_a_conversation_that_comes_back_from_memory_has_nothing_to_encode(make):
    lab = make(FakeBackend(n_seq=1), cache_media_mib=0)
    lab.run(pictured(0, TEXT, LARGE, TEXT))
    lab.run(task(1, [5] * 100))
    lab.run(pictured(2, TEXT, LARGE, TEXT, TEXT))
    assert lab.projector.n_encoded == 1
    assert lab.of(2, Admitted)[0].n_cached >= len(tokens_of(TEXT, LARGE)[0])
    assert lab.tokens(2) == alone(TEXT, LARGE, TEXT, TEXT)


def test_a_conversation_that_ends_with_a_flat_picture_comes_back_too(make):
    lab = make(FlatBackend(n_seq=1), Flat(), cache_media_mib=0)
    lab.run(pictured(0, TEXT, LARGE, n_predict=1, projector=FLAT))
    lab.run(task(1, [5] * 100))
    lab.run(pictured(2, TEXT, LARGE, TEXT, projector=FLAT))
    assert lab.projector.n_encoded == 1
    assert lab.tokens(2) == alone(TEXT, LARGE, TEXT, projector=FLAT)


@pytest.mark.parametrize(("n_mib", "n_encoded"), [(0, 2), (1, 1)])
def test_a_picture_that_is_evaluated_again_may_be_kept_encoded(make, n_mib, n_encoded):
    lab = make(cache_media_mib=n_mib)
    for i in range(2):
        lab.run(pictured(i, TEXT, LARGE, cache_prompt=False))
    assert lab.projector.n_encoded == n_encoded
    assert lab.tokens(1) == lab.tokens(0)


def test_another_picture_is_never_taken_for_this_one(make):
    lab = make(FakeBackend(n_seq=1))
    for i, pixels in enumerate((SMALL, OTHER, SMALL, MIDDLE)):
        lab.run(pictured(i, TEXT, pixels, TEXT))
        assert lab.tokens(i) == alone(TEXT, pixels, TEXT)


@pytest.mark.parametrize("projector", [PLAIN, FLAT])
def test_who_left_in_the_middle_of_a_picture_leaves_no_part_of_it_to_others(make, projector):
    backend = FlatBackend if projector is FLAT else FakeBackend
    lab = make(backend(n_seq=1, n_ubatch=16), Flat() if projector is FLAT else None)
    one, other = (pictured(i, [1] * 40, LARGE, TEXT, projector=projector) for i in range(2))
    (run,) = runs_in(np.array(one.prompt, np.int32))
    lab.engine.handle(one)
    lab.step_until(lambda: len(lab.backend.sequences[0]) > run.start)
    assert len(lab.backend.sequences[0]) < run.end
    lab.engine.handle(Cancel(0))
    lab.check_mirrors()
    assert lab.backend.sequences[0] == one.prompt[: run.start]
    lab.run(other)
    assert lab.of(1, Admitted)[0].n_cached == 32
    assert lab.tokens(1) == alone([1] * 40, LARGE, TEXT, projector=projector)


# Those who leave, and what goes wrong


def test_who_leaves_while_a_picture_is_encoded_is_gone(lab):
    lab.projector.gate.clear()
    lab.engine.handle(pictured(0, TEXT, SMALL, TEXT))
    lab.step_until(lambda: lab.engine.is_waiting and lab.projector.encoded)
    lab.engine.handle(Cancel(0))
    assert all(slot.is_idle for slot in lab.slots)
    lab.projector.gate.set()
    lab.run()
    assert lab.projector.n_stopped == 1
    lab.run(pictured(1, TEXT, SMALL, TEXT))
    assert lab.tokens(1) == alone(TEXT, SMALL, TEXT)
    assert not lab.of(0, Done)
    assert not lab.of(0, Failed)


def test_who_leaves_while_a_picture_waits_in_vain_for_its_turn_is_gone(make):
    """It stands still while others have their turn; then it notices."""
    lab = make(max_itl_ms=50)
    lab.engine.handle(task(0, TEXT, n_predict=20))
    lab.step_until(lambda: lab.tokens(0))
    lab.projector.door.clear()
    lab.engine.handle(pictured(1, SMALL, TEXT))
    lab.step()
    lab.engine.handle(Cancel(1))
    lab.projector.door.set()
    lab.run()
    lab.run(pictured(2, SMALL, TEXT))
    assert lab.tokens(2) == alone(SMALL, TEXT)


def test_a_broken_picture_fails_its_own_request_only(make):
    lab = make(FakeBackend(n_seq=4))
    lab.projector.door.clear()
    lab.engine.handle(task(0, TEXT, n_predict=60))
    lab.engine.handle(pictured(1, TEXT, SMALL, BAD, TEXT))
    lab.engine.handle(pictured(2, TEXT, SMALL, TEXT))
    for _ in range(5):
        lab.step()
    lab.projector.door.set()
    lab.run()
    (failed,) = lab.of(1, Failed)
    assert (status_of(failed), failed.error.message) == (500, "it cannot be encoded: it is broken")
    assert not lab.of(1, Done)
    assert lab.tokens(0) == alone(TEXT, n_predict=60)
    assert lab.tokens(2) == alone(TEXT, SMALL, TEXT)
    lab.run(pictured(3, TEXT, SMALL, TEXT, n_predict=9))
    assert lab.tokens(3) == alone(TEXT, SMALL, TEXT, n_predict=9)


def test_twins_of_a_broken_picture_all_fail(lab):
    lab.run(*(pictured(i, TEXT, BAD, seed=i) for i in range(3)))
    assert [len(lab.of(i, Failed)) for i in range(3)] == [1, 1, 1]
    assert all(slot.is_idle for slot in lab.slots)


def test_a_projector_that_breaks_is_no_engine_that_breaks(lab, capsys):
    encode = lab.projector.encode
    lab.projector.encode = lambda media, go_on: 1 / 0
    lab.run(pictured(0, TEXT, SMALL), task(1, TEXT))
    assert lab.of(0, Failed)[0].error.message == "internal engine error (ZeroDivisionError)"
    assert lab.tokens(1) == alone(TEXT)
    assert "ZeroDivisionError" in capsys.readouterr().err
    lab.projector.encode = encode
    lab.run(pictured(2, TEXT, SMALL))
    assert lab.tokens(2) == alone(TEXT, SMALL)


def test_a_prompt_that_does_not_go_together_with_its_media_is_refused(lab):
    one = pictured(0, TEXT, SMALL)
    lab.run(msgspec.structs.replace(one, prompt=TEXT))
    (failed,) = lab.of(0, Failed)
    assert status_of(failed) == 400
    assert is_closed(one.fd)


def test_tokens_of_pictures_without_pictures_are_refused(lab):
    lab.run(task(0, tokens_of(TEXT, SMALL)[0]), Embed(id=1, inputs=[TEXT, tokens_of(SMALL)[0]]))
    assert [len(lab.of(i, Failed)) for i in (0, 1)] == [1, 1]
    assert lab.backend.batches == lab.backend.encoder.batches == []


def test_a_decode_that_leaves_debris_begins_the_prompt_again(make):
    lab = make(FakeBackend(n_ubatch=16, can_cut=False), cache_media_mib=0)
    run = runs_in(np.array(tokens_of(TEXT, LARGE, TEXT)[0], np.int32))[0]
    lab.engine.handle(pictured(0, TEXT, LARGE, TEXT))
    lab.step_until(lambda: len(lab.backend.sequences[0]) > run.start)
    lab.backend.leaves_debris = True
    lab.run()
    assert lab.tokens(0) == alone(TEXT, LARGE, TEXT)
    assert lab.projector.n_encoded == 1, "what is encoded is still at hand"


def test_a_cached_picture_that_is_lost_is_encoded_after_all(make):
    backend = FakeBackend(n_seq=1, n_ubatch=16, can_cut=False)
    lab = make(backend, cache_media_mib=0, n_ctx_checkpoints=0)
    lab.run(pictured(0, TEXT, MIDDLE, n_predict=1))
    lab.engine.handle(pictured(1, TEXT, MIDDLE, [3] * 60))
    lab.step()
    assert lab.of(1, Admitted)[0].n_cached == len(tokens_of(TEXT, MIDDLE)[0])
    lab.backend.leaves_debris = True
    lab.run()
    assert lab.projector.n_encoded == 2
    assert lab.tokens(1) == alone(TEXT, MIDDLE, [3] * 60)


# Whatever else is running


@functools.lru_cache(4096)
def expected(parts: tuple, seed: int, n_predict: int, n_ctx: int, is_flat: bool = False) -> list[int]:
    projector = FLAT if is_flat else PLAIN
    return alone(*unpack(parts), n_ctx=n_ctx, seed=seed, n_predict=n_predict, projector=projector)


def unpack(parts: tuple) -> list:
    return [PICTURES[part] if isinstance(part, int) else list(part) for part in parts]


texts = st.one_of(st.lists(st.integers(1, 2), min_size=1, max_size=25).map(tuple), st.just((1,) * 12))
prompts = st.lists(st.one_of(texts, st.integers(0, 4)), min_size=1, max_size=4).map(tuple)
specs = st.tuples(prompts, st.integers(0, 1), st.integers(0, 10), st.booleans())


kinds = st.sampled_from(
    [
        {},
        {"mixes_batches": True},
        {"can_cut": False},
        {"mixes_batches": True, "n_cells": 180, "n_ctx": 180},
    ]
)
troubles = st.sampled_from(["aborts", "leaves_debris", "", "", ""])


def check_a_mix(tasks, data, backend, projector, arranger) -> None:
    """Whoever comes, leaves, or shows what another one does; decodes are aborted, cells and turns run out."""
    lab = MediaHarness(backend, projector, max_itl_ms=data.draw(st.sampled_from([5, 50])), cache_media_mib=0)
    cancelled = set()
    try:
        for i, (parts, seed, n_predict, cache) in enumerate(tasks):
            params = {"seed": seed, "n_predict": n_predict, "cache_prompt": cache}
            lab.engine.handle(pictured(i, *unpack(parts), projector=arranger, **params))
            if data.draw(st.booleans()):
                projector.door.clear()
            for _ in range(data.draw(st.integers(0, 4))):
                if lab.engine.has_work:
                    lab.step()
            if data.draw(st.booleans()):
                projector.door.set()
            trouble = data.draw(troubles)
            if trouble and (trouble == "aborts" or (backend.can_cut and backend._n_cells is None)):
                setattr(backend, trouble, True)
            if data.draw(st.integers(0, 5)) == 0:
                leaving = data.draw(st.integers(0, i))
                if not lab.of(leaving, Done):
                    lab.engine.handle(Cancel(leaving))
                    cancelled.add(leaving)
        projector.door.set()
        lab.run()
        for i, (parts, seed, n_predict, _) in enumerate(tasks):
            assert not lab.of(i, Failed)
            if i not in cancelled:
                assert len(lab.of(i, Done)) == 1
                assert lab.tokens(i) == expected(parts, seed, n_predict, backend.n_ctx, arranger is FLAT)
        for chunk in lab.decoded:
            assert chunk.encoded is None or chunk.encoded.is_causal == projector.is_causal
        assert all(not sampler.is_open for sampler in backend.samplers)
        assert all(slot.is_idle for slot in lab.slots)
    finally:
        lab.close()


@given(
    st.lists(specs, min_size=1, max_size=7),
    st.data(),
    kinds,
    st.sampled_from([(16, True, 1), (48, False, 1), (32, True, 4)]),
)
@examples(120)
def test_every_prompt_answers_as_if_alone(tasks, data, kind, how):
    n_ubatch, is_causal, batch = how
    backend = FakeBackend(n_seq=3, n_ubatch=n_ubatch, n_batch=64, **kind)
    check_a_mix(tasks, data, backend, GatedProjector(is_causal=is_causal, batch=batch), PLAIN)


@given(st.lists(specs, min_size=1, max_size=7), st.data(), kinds, st.sampled_from([(16, True), (48, False)]))
@examples(80)
def test_flat_pictures_too(tasks, data, kind, how):
    n_ubatch, is_causal = how
    backend = FlatBackend(n_seq=3, n_ubatch=n_ubatch, n_batch=64, **kind)
    check_a_mix(tasks, data, backend, Flat(is_causal=is_causal), FLAT)


def test_a_decode_that_fails_within_a_flat_picture_begins_the_prompt_again(make):
    """It cannot be cut between tokens that share a position."""
    lab = make(FlatBackend(n_ubatch=16), Flat())
    one = pictured(0, TEXT, LARGE, TEXT, projector=FLAT)
    (run,) = runs_in(np.array(one.prompt, np.int32))
    assert (run.n_pos, run.is_flat) == (6, True)
    lab.engine.handle(one)
    lab.step_until(lambda: run.start < len(lab.backend.sequences[0]) < run.end)
    lab.backend.leaves_debris = True
    lab.step()
    assert lab.backend.sequences[0] == []
    lab.run()
    assert lab.tokens(0) == alone(TEXT, LARGE, TEXT, projector=FLAT)
    assert lab.backend.sequences[0][: len(one.prompt)] == one.prompt


def test_running_out_of_cells_loses_no_picture(make):
    """All of them fit alone, two of them do not fit together: some are swapped out."""
    lab = make(FakeBackend(n_seq=4, n_ctx=120, n_cells=120, mixes_batches=True), cache_media_mib=0)
    lab.run(*(pictured(i, [1 + i] * 9, LARGE, TEXT, n_predict=40) for i in range(4)))
    for i in range(4):
        assert lab.tokens(i) == alone([1 + i] * 9, LARGE, TEXT, n_predict=40, n_ctx=120)


@pytest.mark.parametrize("max_itl_ms", [1, 5, 200])
@pytest.mark.parametrize("mixes", [False, True])
def test_a_picture_that_sees_itself_as_a_whole_is_one_chunk(make, max_itl_ms, mixes):
    backend = FakeBackend(n_ubatch=64, mixes_batches=mixes)
    lab = make(backend, GatedProjector(is_causal=False), max_itl_ms=max_itl_ms)
    lab.projector.door.clear()
    lab.engine.handle(pictured(1, TEXT, LARGE, TEXT, SMALL, TALL))
    lab.step_until(lambda: lab.engine.is_waiting)
    lab.engine.handle(task(0, TEXT, n_predict=60))
    lab.step_until(lambda: lab.tokens(0))
    lab.projector.door.set()
    lab.run()
    sizes = [len(chunk.tokens) for chunk in lab.decoded if chunk.encoded is not None]
    assert sizes == [36, 4, 10, 10]
    assert lab.tokens(0) == alone(TEXT, n_predict=60)
    assert lab.tokens(1) == alone(TEXT, LARGE, TEXT, SMALL, TALL)


def test_a_large_picture_is_evaluated_in_aligned_chunks(make):
    lab = make(FakeBackend(n_ubatch=16))
    lab.run(pictured(0, [1] * 9, LARGE, TEXT))
    assert [len(c.tokens) for c in lab.decoded if c.encoded is not None] == [16, 12, 8]
    assert [len(c.tokens) for c in lab.decoded if c.encoded is None][:2] == [10, 13]


# Full contexts, and lost engines


def whole(tokens: list[int]) -> bool:
    """Every picture among tokens is there as a whole."""
    return is_valid_layout(np.array(tokens, np.int32)) and set(_pictures_in(tokens)) <= _known_pictures()


@functools.cache
def _known_pictures() -> set[tuple[int, ...]]:
    return {_pictures_in(tokens_of(pixels)[0])[0] for pixels in PICTURES}


def _pictures_in(tokens: list[int]) -> list[tuple[int, ...]]:
    return [tuple(tokens[span.start : span.end]) for span in spans_in(np.array(tokens, np.int32))]


@pytest.mark.parametrize("n_keep", [0, 5, 20, 40, -1])
@pytest.mark.parametrize(
    "parts", [(TEXT, LARGE, TEXT), (SMALL, TALL, MIDDLE), (LARGE,), (TEXT, SMALL, LARGE)]
)
def test_a_context_shift_keeps_pictures_whole(make, n_keep, parts):
    lab = make(FakeBackend(n_ctx=80), context_shift=True)
    lab.engine.handle(pictured(0, *parts, n_predict=150, n_keep=n_keep))
    while lab.engine.has_work:
        lab.sleep()
        lab.step()
        tokens = lab.backend.sequences[0]
        assert whole(tokens) or not lab.tokens(0)
        assert len(tokens) <= 80
    assert len(lab.tokens(0)) == 150
    assert lab.done(0).truncated


@given(
    prompts,
    st.integers(1, 120),
    st.integers(0, 119),
    st.booleans(),
    st.integers(0, 40),
)
@examples(40)
def test_resuming_after_any_token_continues_the_same(parts, n_predict, n_delivered, shifts, n_keep):
    def result(resume: list[int]) -> tuple[list[int], Done]:
        lab = MediaHarness(FakeBackend(n_ctx=150), context_shift=shifts)
        try:
            one = pictured(0, *unpack(parts), n_predict=n_predict, n_keep=n_keep)
            lab.run(msgspec.structs.replace(one, resume=resume))
            return lab.tokens(0), lab.done(0)
        finally:
            lab.close()

    expected_tokens, done = result([])
    n_delivered = min(n_delivered, max(len(expected_tokens) - 1, 0))
    tokens, later = result(expected_tokens[:n_delivered])
    assert tokens == expected_tokens[n_delivered:]
    assert (later.stop_type, later.truncated) == (done.stop_type, done.truncated)


# Slots


def act(lab: MediaHarness, **fields) -> SlotReport:
    action = SlotAction(id=1000 + len(lab.events), **fields)
    lab.run(action)
    (event,) = [event for event in lab.events if event.task_id == action.id]
    if isinstance(event, Failed):
        raise CorralError.from_info(event.error)
    return event


def test_the_world_is_told_of_no_spelling(lab):
    one = pictured(0, TEXT, SMALL, TEXT, TALL)
    lab.run(one)
    report = act(lab, verb=Verb.TOKENS, slot=0)
    assert report.tokens == [max(-1, token) for token in lab.backend.sequences[0]]
    assert report.tokens.count(-1) == 24
    assert report.n_tokens == len(lab.backend.sequences[0])


def test_a_shift_through_a_picture_is_refused(lab):
    one = pictured(0, TEXT, MIDDLE, TEXT)
    lab.run(one)
    (run,) = runs_in(np.array(one.prompt, np.int32))
    before = list(lab.backend.sequences[0])
    for n_keep, n_discard in [(run.start + 1, 20), (2, run.start), (run.start, 15), (run.end - 1, 1)]:
        with pytest.raises(CorralError, match=f"tokens {run.start} to {run.end - 1}"):
            act(lab, verb=Verb.SHIFT, slot=0, n_keep=n_keep, n_discard=n_discard)
    assert lab.backend.sequences[0] == before
    act(lab, verb=Verb.SHIFT, slot=0, n_keep=run.start, n_discard=16)
    assert lab.backend.sequences[0] == before[: run.start] + before[run.end :]


def test_a_pictured_slot_is_saved_forked_and_restored(lab):
    lab.run(pictured(0, TEXT, LARGE, TEXT))
    before = list(lab.backend.sequences[0])
    fd = os.memfd_create("state")
    try:
        act(lab, verb=Verb.SAVE, slot=0, fd=os.dup(fd))
        act(lab, verb=Verb.FORK, slot=1, source=0)
        act(lab, verb=Verb.ERASE, slot=0)
        assert lab.backend.sequences[:2] == [[], before]
        act(lab, verb=Verb.ERASE, slot=1)
        act(lab, verb=Verb.RESTORE, slot=2, fd=os.dup(fd), is_ours=True)
    finally:
        os.close(fd)
    assert lab.backend.sequences[2] == before
    n = lab.projector.n_encoded
    lab.run(pictured(1, TEXT, LARGE, TEXT, TEXT))
    assert lab.projector.n_encoded == n
    assert lab.tokens(1) == alone(TEXT, LARGE, TEXT, TEXT)


def test_what_is_left_of_a_flat_picture_that_was_not_finished_can_be_saved(make):
    lab = make(FlatBackend(n_seq=1, n_ubatch=16), Flat())
    one = pictured(0, [1] * 40, LARGE, TEXT, projector=FLAT)
    lab.engine.handle(one)
    (run,) = runs_in(np.array(one.prompt, np.int32))
    lab.step_until(lambda: len(lab.backend.sequences[0]) > run.start)
    lab.engine.handle(Cancel(0))
    fd = os.memfd_create("state")
    try:
        act(lab, verb=Verb.SAVE, slot=0, fd=os.dup(fd))
        act(lab, verb=Verb.ERASE, slot=0)
        act(lab, verb=Verb.RESTORE, slot=0, fd=os.dup(fd), is_ours=True)
    finally:
        os.close(fd)
    assert lab.backend.sequences[0] == one.prompt[: run.start]


@pytest.fixture
def drafting():
    backend = FakeBackend()
    backend.uses_gpu = True  # evaluates as much ahead as it likes
    return backend


def test_a_draft_ends_where_a_picture_begins(make, drafting):
    """What is found again in the prompt is followed by one."""
    lab = make(drafting)
    lab.engine.warm_up()
    words = drafting.vocab.tokenize("abcd", False, False)
    lab.run(pictured(0, TEXT, words, SMALL, TEXT, n_predict=-1, constraint=grammar("abcdezz")))
    assert lab.text(0) == "abcdezz"
    # Behind the text and an "a" come the others, and the token before the picture, which is an "e".
    assert lab.done(0).timings.draft_n == lab.done(0).timings.draft_n_accepted == 4


def test_what_is_learned_has_no_pictures(make, drafting, tmp_path):
    path = tmp_path / "lookup"
    lab = make(drafting, lookup_cache_dynamic=str(path))
    lab.engine.warm_up()
    for i in range(4):
        lab.run(pictured(i, TEXT, SMALL, n_predict=60, cache_prompt=False))
        assert lab.tokens(i) == alone(TEXT, SMALL, n_predict=60)
    assert lab.done(3).timings.draft_n > 0
    lab.engine.handle(Stop())
    assert len(NgramCache.decode(path.read_bytes(), drafting.n_vocab)) > 0


# Which tokens media become


def test_an_order_to_arrange_is_answered(lab):
    media = described_of(SMALL, TALL)
    lab.run(LayoutMedia(5, media))
    assert lab.events == [MediaLayout(5, [lab.projector.layout_media(medium) for medium in media])]


@pytest.mark.parametrize("pixels", [noise(7, UNREADABLE, 8), np.zeros(9, np.float32)])
def test_an_order_to_arrange_what_cannot_be_fails(lab, pixels):
    lab.run(LayoutMedia(5, described_of(SMALL, pixels)), task(6, TEXT))
    (failed,) = lab.of(5, Failed)
    assert status_of(failed) == 400
    assert lab.tokens(6) == alone(TEXT)


def test_a_failure_to_arrange_says_which_one_it_is(lab):
    lab.run(LayoutMedia(5, described_of(SMALL, noise(7, UNREADABLE, 8))))
    assert lab.of(5, Failed)[0].error.message.startswith("image 2: ")


def test_without_a_projector_nothing_is_arranged():
    bench = EngineHarness()
    bench.run(LayoutMedia(5, described_of(SMALL)))
    (failed,) = bench.of(5, Failed)
    assert status_of(failed) == 400
    assert "--mmproj" in failed.error.message


# Embedding


class StrictEncoder(FakeEncoder):
    """Media and text are apart, and media come with their rows."""

    def decode(self, chunks):
        for chunk in chunks:
            is_media = chunk.tokens < 0
            assert is_media.all() or not is_media.any()
            assert (chunk.encoded is not None) == bool(is_media.any())
            assert chunk.encoded is None or (
                len(chunks) == 1 and len(chunk.encoded.rows) == len(chunk.tokens)
            )
        return super().decode(chunks)


def embed(id: int, *inputs: Iterable[Any]) -> Embed:
    """An order whose inputs are made of texts and pictures."""
    made = [tokens_of(*parts) for parts in inputs]
    media, at = [], 0
    for _, described in made:
        placed = []
        for medium in described:
            placed.append(msgspec.structs.replace(medium, start=at))
            at += medium.n_bytes
        media.append(placed)
    order = Embed(id=id, inputs=[tokens for tokens, _ in made])
    if not any(media):
        return order
    arrays = [part for parts in inputs for part in parts if isinstance(part, np.ndarray)]
    return msgspec.structs.replace(order, media=media, fd=media_of(arrays)[1])


class EmbedMediaHarness:
    """An engine of either kind that embeds, stepped by hand."""

    def __init__(
        self, only_embeds: bool, projector: GatedProjector | None = None, n_mib: int = 0, **encoder
    ) -> None:
        self.projector = projector or GatedProjector()
        self.encoder = StrictEncoder(Pooling.LAST, **encoder)
        self.engine: Any
        self.events: list = []
        self.wakes = threading.Semaphore(0)
        wake = self.wakes.release
        if only_embeds:
            self.engine = EmbeddingEngine(
                self.encoder,
                FakeAdapters(),
                self.events.extend,
                wake=wake,
                projector=self.projector,
                cache_media_bytes=n_mib << 20,
            )
        else:
            backend = FakeBackend(encoder=self.encoder)
            backend.projector = self.projector
            settings = EngineSettings(model="fake", cache_media_mib=n_mib)
            self.engine = GenerationEngine(backend, settings, keeping(self.events), wake=wake)

    def run(self, *orders) -> None:
        for order in orders:
            self.engine.handle(order)
        run_out(self.engine, self.wakes, self.engine.step)

    def step_until(self, condition) -> None:
        wait_until(lambda: condition() or self.engine.step())

    def of(self, id: int, kind: Any) -> list:
        return [event for event in self.events if isinstance(event, kind) and event.task_id == id]

    def check(self, order: Embed) -> None:
        """The answer is complete, and what each input gives alone."""
        assert len(self.of(order.id, Embedded)) == 1
        rows = {
            vectors.index: np.frombuffer(vectors.data, np.float32) for vectors in self.of(order.id, Vectors)
        }
        assert sorted(rows) == list(range(len(order.inputs)))
        for i, tokens in enumerate(order.inputs):
            np.testing.assert_allclose(rows[i], embed_alone(tokens, Pooling.LAST), rtol=1e-6)

    def close(self) -> None:
        self.projector.gate.set()
        self.projector.door.set()
        self.engine._media.go_on()
        self.engine._media._encoding.shutdown()


@pytest.fixture(params=[False, True], ids=["beside generation", "only"])
def embedder(request):
    labs: list[EmbedMediaHarness] = []

    def make_lab(projector: GatedProjector | None = None, **options) -> EmbedMediaHarness:
        labs.append(EmbedMediaHarness(request.param, projector, **options))
        return labs[-1]

    yield make_lab
    for lab in labs:
        lab.close()


def test_inputs_with_pictures_are_embedded(embedder):
    lab = embedder()
    orders = [
        embed(0, (TEXT,), (TEXT, SMALL, TEXT), (LARGE,), (TALL, [1] * 50)),
        embed(1, ([3] * 90,), (SMALL, SMALL)),
        embed(2, (TEXT,)),
    ]
    lab.run(*orders)
    for order in orders:
        lab.check(order)
        assert order.fd < 0 or is_closed(order.fd)
    rows = [c.encoded.rows for batch in lab.encoder.batches for c in batch if c.encoded is not None]
    assert sum(map(len, rows)) == 4 + 36 + 20 + 8
    assert lab.encoder.sequences == {}


def test_texts_are_embedded_while_a_picture_is_encoded(embedder):
    lab = embedder()
    lab.projector.door.clear()
    first, second = embed(0, (TEXT,), (TEXT, SMALL)), embed(1, (TEXT,), ([4] * 80,))
    lab.engine.handle(first)
    lab.engine.handle(second)
    lab.step_until(lambda: lab.engine.is_waiting)
    lab.check(second)
    assert [vectors.index for vectors in lab.of(0, Vectors)] == [0]
    lab.projector.door.set()
    lab.run()
    lab.check(first)


def test_one_picture_of_many_inputs_is_encoded_once(embedder):
    lab = embedder()
    lab.projector.door.clear()
    order = embed(0, (TEXT, SMALL), (SMALL, TEXT), (SMALL,))
    lab.engine.handle(order)
    lab.step_until(lambda: lab.engine.is_waiting)
    lab.projector.door.set()
    lab.run()
    lab.check(order)
    assert lab.projector.n_encoded == 1


def test_who_leaves_while_his_picture_is_encoded_is_not_embedded(embedder):
    lab = embedder()
    lab.projector.gate.clear()
    lab.engine.handle(embed(0, (TEXT, SMALL), (OTHER,)))
    lab.step_until(lambda: lab.engine.is_waiting and lab.projector.encoded)
    lab.engine.handle(Cancel(0))
    lab.projector.gate.set()
    lab.run()
    assert lab.projector.n_stopped == 1
    later = embed(1, (TEXT, SMALL))
    lab.run(later)
    lab.check(later)
    assert not lab.of(0, Vectors)


def test_who_leaves_in_the_middle_of_a_picture_leaves_nothing_behind(embedder):
    lab = embedder(n_batch=16)
    lab.engine.handle(embed(0, (TEXT, LARGE, TEXT)))
    lab.step_until(lambda: any(c.encoded is not None for batch in lab.encoder.batches for c in batch))
    lab.engine.handle(Cancel(0))
    assert lab.encoder.sequences == {}
    later = embed(1, (TEXT, LARGE, TEXT))
    lab.run(later)
    lab.check(later)


def test_an_input_with_a_broken_picture_fails_its_order_only(embedder):
    lab = embedder()
    good, bad = embed(0, (TEXT, SMALL), (TEXT,)), embed(1, (SMALL, TEXT), (TEXT, BAD), (BAD,))
    lab.run(good, bad)
    lab.check(good)
    (failed,) = lab.of(1, Failed)
    assert "it is broken" in failed.error.message
    assert not lab.of(1, Embedded)
    assert is_closed(bad.fd)


def test_a_decode_that_is_aborted_begins_the_input_again(embedder):
    lab = embedder(n_batch=16)
    order = embed(0, (TEXT, LARGE, TEXT))
    lab.engine.handle(order)
    lab.step_until(lambda: any(c.encoded is not None for batch in lab.encoder.batches for c in batch))
    lab.encoder.aborts = True
    lab.run()
    lab.check(order)
    assert lab.projector.n_encoded == 1


def test_a_decode_that_fails_is_the_end_of_its_order(embedder):
    lab = embedder()
    lab.encoder.statuses = [CorralError("it went wrong")]
    order, later = embed(0, (TEXT, SMALL), (TEXT, OTHER)), embed(1, (TEXT, SMALL))
    lab.run(order)
    lab.run(later)
    assert len(lab.of(0, Failed)) == 1
    lab.check(later)


def test_a_model_that_looks_at_a_whole_input_embeds_no_picture(embedder):
    lab = embedder(is_whole=True)
    order, text = embed(0, (TEXT,), (SMALL,)), embed(1, (TEXT,))
    lab.run(order, text)
    (failed,) = lab.of(0, Failed)
    assert status_of(failed) == 400
    assert "whole" in failed.error.message
    assert is_closed(order.fd)
    lab.check(text)
    assert lab.projector.n_encoded == 0


def test_a_picture_that_sees_itself_as_a_whole_is_embedded_so(embedder):
    lab = embedder(GatedProjector(is_causal=False), n_batch=48)
    order = embed(0, (TEXT, LARGE, TEXT, SMALL))
    lab.run(order)
    lab.check(order)
    chunks = [c for batch in lab.encoder.batches for c in batch if c.encoded is not None]
    assert [len(chunk.tokens) for chunk in chunks] == [36, 4]


def test_media_that_cannot_be_read_fail_their_order(embedder):
    lab = embedder()
    cut, other = embed(0, (TEXT, SMALL)), embed(1, (TEXT, SMALL))
    os.ftruncate(cut.fd, 5)
    wrong = msgspec.structs.replace(other, inputs=[TEXT])
    lab.run(cut, wrong)
    assert [status_of(lab.of(i, Failed)[0]) for i in (0, 1)] == [500, 400]
    assert is_closed(cut.fd)
    assert is_closed(other.fd)
    assert not lab.engine.has_work


def test_an_order_without_room_for_its_pictures_fails_once(embedder):
    lab = embedder(n_mib=1)

    def reserve(n: int) -> None:
        raise CorralError("there is no room")

    lab.encoder.reserve = reserve
    lab.projector.door.clear()
    lab.engine.handle(embed(0, (TEXT, SMALL), (SMALL, TEXT)))
    lab.step_until(lambda: lab.engine.is_waiting)
    lab.projector.door.set()
    lab.run()
    assert len(lab.of(0, Failed)) == 1


def test_both_engines_arrange(embedder):
    lab = embedder()
    media = described_of(SMALL, TALL)
    lab.run(LayoutMedia(5, media), LayoutMedia(6, described_of(noise(7, UNREADABLE, 8))))
    assert lab.of(5, MediaLayout) == [
        MediaLayout(5, [lab.projector.layout_media(medium) for medium in media])
    ]
    assert status_of(lab.of(6, Failed)[0]) == 400


def test_an_engine_that_only_embeds_closes_the_files_of_other_orders():
    lab = EmbedMediaHarness(only_embeds=True)
    one = pictured(0, TEXT, SMALL)
    lab.engine.handle(one)
    assert status_of(lab.of(0, Failed)[0]) == 501
    assert is_closed(one.fd)
    lab.close()


@pytest.mark.usefixtures("busy_interpreter")
def test_texts_do_not_keep_pictures_out():
    lab = EmbedMediaHarness(only_embeds=True)
    texts = [embed(i, (TEXT,)) for i in range(1, 500)]
    try:
        lab.projector.door.clear()
        lab.engine.handle(embed(0, (TEXT, SMALL)))
        lab.engine.step()
        lab.engine._media.pause()
        lab.projector.door.set()
        wait_until(lambda: lab.engine._media._slicer._is_engaged)
        for order in texts:
            lab.engine.handle(order)
            lab.engine.step()
        assert lab.of(0, Embedded)
    finally:
        lab.close()


@given(
    st.lists(st.lists(prompts, min_size=1, max_size=3), min_size=1, max_size=4),
    st.data(),
    st.booleans(),
)
@examples(50)
def test_every_input_gives_what_it_gives_alone(orders, data, only_embeds):
    lab = EmbedMediaHarness(only_embeds, n_batch=data.draw(st.integers(16, 32)))
    made, cancelled = [], set()
    try:
        for i, inputs in enumerate(orders):
            made.append(embed(i, *(unpack(parts) for parts in inputs)))
            lab.engine.handle(made[-1])
            if data.draw(st.booleans()):
                lab.projector.door.clear()
            for _ in range(data.draw(st.integers(0, 4))):
                if lab.engine.has_work:
                    lab.engine.step()
            if data.draw(st.booleans()):
                lab.projector.door.set()
            lab.encoder.aborts = data.draw(st.integers(0, 3)) == 0
            if data.draw(st.integers(0, 5)) == 0 and not lab.of(i, Embedded):
                lab.engine.handle(Cancel(i))
                cancelled.add(i)
        lab.projector.door.set()
        lab.run()
        for order in made:
            if order.id not in cancelled:
                lab.check(order)
        assert lab.encoder.sequences == {}
    finally:
        lab.close()
