"""Sequences of a real context: saved, loaded, refused and aborted, and still usable afterwards."""

from __future__ import annotations

import random
import threading
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.core.chunk import DecodeStatus
from corral.core.task import Cancel
from corral.engine.prefix import MIN_REUSE
from corral.engine.saved import SavedState
from tests.model.llama_harness import SEEDED, LlamaHarness, alone, task

TINY = ["llama-bpe", "llama-spm", "gemma-swa", "mamba"]
CUTTABLE = TINY[:3]

few_examples = settings(max_examples=40, deadline=None, derandomize=True, database=None)


def on(*names):
    return pytest.mark.parametrize("model", names, indirect=True)


@on(
    *CUTTABLE,
    "mamba",
)
def test_a_saved_sequence_continues_in_another_slot_and_another_context(model):
    with LlamaHarness(model, n_parallel=2) as bench, LlamaHarness(model, n_parallel=2) as other:
        bench.run(task(0, bench.prompt(70), SEEDED, id_slot=0))
        tokens, state = bench.slots[0].tokens.view.copy(), bytes(bench.backend.save(0))
        assert put(bench, 1, tokens, state)
        assert put(other, 1, tokens, state)
        second_turn = [*tokens.tolist(), *bench.prompt(20, seed=1)]
        for where, id_slot in ((bench, 0), (bench, 1), (other, 1)):
            one = task(10 + id_slot, second_turn, SEEDED, id_slot=id_slot)
            where.run(one)
            assert where.n_cached(one.id) > len(tokens) - MIN_REUSE
        assert bench.tokens(10) == bench.tokens(11) == other.tokens(11)
        assert len(bench.answer(10)) == 24


@on(*TINY)
def test_a_loaded_state_is_saved_as_the_same_bytes(model):
    with LlamaHarness(model, n_parallel=2) as bench:
        bench.run(task(0, bench.prompt(50), id_slot=0))
        state = bytes(bench.backend.save(0))
        assert bench.backend.load(0, state, len(bench.slots[0].tokens))
        assert bytes(bench.backend.save(0)) == state


@on(*CUTTABLE)
def test_a_pending_copy_is_neither_saved_nor_overwritten_until_it_is_settled(model):
    """libllama moves the data in the next decode; until then a state would be that of another sequence."""
    with LlamaHarness(model, n_parallel=3) as bench:
        prompt = bench.prompt(60)
        bench.run(task(0, prompt, id_slot=0, n_predict=1))
        state = bytes(bench.backend.save(0))
        bench.kv.copy(bench.slots[0], bench.slots[1], 50)
        assert [bench.backend.save(seq) for seq in (0, 1)] == [None, None]
        assert not bench.backend.load(0, state, 60)
        assert bench.backend.flush_pending(1)
        settled = bytes(bench.backend.save(1))
        assert put(bench, 0, prompt[:50], settled)
        for id_slot in (0, 1):
            bench.run(task(10 + id_slot, prompt, id_slot=id_slot))
            assert bench.n_cached(10 + id_slot) >= 50 - MIN_REUSE
            assert bench.answer(10 + id_slot) == alone(model, task(0, prompt))


GARBAGE = {
    "nothing": b"",
    "one byte": b"\0",
    "zeros": bytes(2000),
    "ones": b"\xff" * 2000,
    "text": b"this was never a state of anything " * 100,
    "noise": random.Random(0).randbytes(5000),
}


@on(*TINY)
@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_refused_and_leaves_a_working_slot(model, garbage):
    with LlamaHarness(model, n_parallel=2) as bench:
        one = task(0, bench.prompt(40), SEEDED, id_slot=1)
        assert not put(bench, 1, bench.prompt(40), garbage)
        bench.run(one)
        assert bench.answer(0) == alone(model, task(0, one.prompt, SEEDED))


@given(name=st.sampled_from(TINY), share=st.floats(0, 1, exclude_max=True))
@few_examples
def test_a_truncated_state_is_refused_and_leaves_a_working_slot(models, name, share):
    path = models / f"{name}.gguf"
    with LlamaHarness(path, n_parallel=2) as bench:
        one = task(0, bench.prompt(40), SEEDED, id_slot=0)
        bench.run(one)
        state = bytes(bench.backend.save(0))
        assert not put(bench, 1, bench.slots[0].tokens.view, state[: int(share * len(state))])
        bench.run(task(1, one.prompt, SEEDED, id_slot=1, cache_prompt=False))
        assert bench.answer(1) == bench.answer(0)


@on("llama-bpe")
def test_a_state_of_another_model_is_refused(model, models):
    with LlamaHarness(models / "mamba.gguf") as stranger, LlamaHarness(model) as bench:
        stranger.run(task(0, stranger.prompt(40)))
        assert not put(bench, 0, bench.prompt(40), bytes(stranger.backend.save(0)))
        one = task(0, bench.prompt(40))
        bench.run(one)
        assert bench.answer(0) == alone(model, one)


@on("default")
def test_an_abort_from_another_thread_ends_the_decode(model):
    with LlamaHarness(model, n_ctx_slot=1024) as bench:
        prompt = bench.prompt(512)
        bench.engine.handle(task(0, prompt))
        with keep_aborting(bench, 0):
            bench.step_until(lambda: DecodeStatus.ABORTED in bench.statuses)
        assert bench.slots[0].tokens.view.tolist() == []
        bench.engine.handle(Cancel(0))
        assert not bench.engine.has_work
        after = task(1, prompt[:40], n_predict=4)
        bench.run(after)
        assert bench.answer(1) == alone(model, after)


@on(
    "llama-bpe",
    "llama-spm",
    "gemma-swa",
    "mamba",
)
@pytest.mark.parametrize("is_cancelled", [True, False])
def test_an_aborted_chunk_leaves_what_was_before_it(model, is_cancelled):
    with LlamaHarness(model, n_ctx_slot=2048) as bench:
        first = task(0, bench.prompt(2000), SEEDED, n_predict=8)
        bench.engine.handle(first)
        bench.step()
        with keep_aborting(bench, 0):
            bench.step_until(lambda: DecodeStatus.ABORTED in bench.statuses)
        if is_cancelled:
            bench.engine.handle(Cancel(0))
            bench.run(task(1, first.prompt, SEEDED, n_predict=8))
        bench.run()
        assert bench.answer(int(is_cancelled)) == alone(model, first, n_ctx_slot=2048)


@on("llama-bpe")
def test_an_abort_just_before_the_decode_counts(model):
    with LlamaHarness(model) as bench:
        decode = bench.backend.decode

        def late(chunks):
            bench.engine.abort_if_running(0)
            return decode(chunks)

        bench.backend.decode = late
        bench.engine.handle(task(0, bench.prompt(40)))
        bench.step()
        assert bench.statuses == [DecodeStatus.ABORTED]


@contextmanager
def keep_aborting(bench, task_id):
    """Another thread that aborts whatever the task is evaluating, until a decode came back aborted."""
    is_over = threading.Event()

    def abort():
        while not (is_over.is_set() or DecodeStatus.ABORTED in bench.statuses):
            bench.engine.abort_if_running(task_id)

    thread = threading.Thread(target=abort)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def put(bench, id_slot, tokens, state):
    """Load a state into a slot, as the engine itself does."""
    return bench.kv.load(bench.slots[id_slot], SavedState(np.array(tokens, np.int32), state))


@on("llama-bpe", "llama-spm")
def test_sequences_between_those_of_a_batch_are_filled_and_stay_as_they_are(model):
    """A GPU evaluates a batch at once only if its sequences follow each other."""
    with LlamaHarness(model, n_parallel=6) as bench, LlamaHarness(model, n_parallel=6) as other:
        fillers, filled = bench.backend._fillers, []
        bench.backend._fillers = lambda chunks: filled.append(fillers(chunks)) or filled[-1]
        bench.backend._fills_gaps = True
        for where in (bench, other):
            where.run(task(0, where.prompt(40), SEEDED, id_slot=1))
        before = bytes(bench.backend.save(1))
        ones = [
            task(1 + i, bench.prompt(30, seed=i), SEEDED, id_slot=slot) for i, slot in enumerate((0, 2, 5))
        ]
        bench.run(*ones)
        other.run(*ones)
        for one in ones:
            assert bench.tokens(one.id) == other.tokens(one.id)
        assert {each.seq for each in max(filled, key=len)} == {1, 3, 4}
        assert bytes(bench.backend.save(1)) == before
        assert [bench.backend._n_past(slot) for slot in (3, 4)] == [0, 0]
