"""Laws of the engine, on the fake backend: whatever arrives in whatever order."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.errors import CorralError
from corral.core.result import Admitted, Done, Failed, StopType, Tokens
from corral.core.task import Cancel
from corral.engine.request import RequestPhase
from tests.tools.examples import examples
from tests.tools.failure import status_of
from tests.unit.engine_harness import EngineHarness, alone, task
from tests.unit.fake import FakeBackend

prompts = st.lists(st.integers(1, 5), min_size=1, max_size=60)
tasks = st.lists(
    st.tuples(prompts, st.integers(0, 3), st.integers(0, 12), st.booleans(), st.integers(-1, 3)),
    min_size=1,
    max_size=12,
)


@given(tasks, st.data(), st.booleans(), st.booleans())
@examples(150)
def test_every_task_ends_once_and_answers_as_if_alone(specs, data, mixes, continuous):
    backend = FakeBackend(n_seq=4, n_ubatch=16, n_batch=32, mixes_batches=mixes)
    bench = EngineHarness(backend, max_itl_ms=5, cont_batching=continuous)
    all_tasks = [
        task(i, prompt, seed, n, cache_prompt=cache, id_slot=slot)
        for i, (prompt, seed, n, cache, slot) in enumerate(specs)
    ]
    cancelled = set()
    for t in all_tasks:
        bench.engine.handle(t)
        for _ in range(data.draw(st.integers(0, 4))):
            if bench.engine.has_work:
                bench.engine.step()
                bench.check_mirrors()
        if data.draw(st.integers(0, 5)) == 0 and not bench.of(t.id, Done):
            bench.engine.handle(Cancel(t.id))
            cancelled.add(t.id)
    bench.run()
    for t in all_tasks:
        if t.id not in cancelled:
            assert len(bench.of(t.id, Done)) == 1
            assert bench.tokens(t.id) == alone(t)
    assert all(not sampler.is_open for sampler in bench.backend.samplers)
    assert all(slot.is_idle for slot in bench.slots)


def test_a_first_decode_that_reads_the_weights_does_not_count_as_a_cost():
    class Cold(FakeBackend):
        def decode(self, chunks):
            bench.now += 5.0 if not self.batches else 0.0
            return super().decode(chunks)

    bench = EngineHarness(Cold())
    bench.engine.warm_up()
    cost = bench.engine._runner.decoder.cost
    assert cost.prompt.batch_ms + cost.prompt.token_ms + cost.decode_ms < 10


@pytest.mark.parametrize("is_exact", [True, False])
def test_newcomers_share_a_batch_unless_that_would_change_their_bits(is_exact):
    backend = FakeBackend(n_seq=4, n_ubatch=64)
    backend.is_exact = is_exact
    bench = EngineHarness(backend)
    newcomers = [task(i, [1, 2, 3, 4 + i] * 5, n_predict=2, cache_prompt=False) for i in range(3)]
    bench.run(*newcomers)
    assert len(backend.batches[0]) == (1 if is_exact else 3)
    assert all(bench.tokens(each.id) == alone(each) for each in newcomers)


@given(st.lists(st.tuples(prompts, st.integers(1, 30)), min_size=2, max_size=8), st.integers(90, 200))
@examples(100)
def test_running_out_of_cells_loses_nothing(specs, n_cells):
    bench = EngineHarness(FakeBackend(n_seq=4, n_ctx=n_cells, n_cells=n_cells, mixes_batches=True))
    all_tasks = [task(i, prompt, n_predict=n) for i, (prompt, n) in enumerate(specs)]
    bench.run(*all_tasks)
    for t in all_tasks:
        assert bench.tokens(t.id) == alone(t, n_ctx=n_cells)


@given(prompts, st.integers(1, 200), st.integers(0, 199), st.booleans(), st.booleans())
@examples(100)
def test_resuming_after_any_token_continues_the_same(prompt, n_predict, n_delivered, shifts, is_exact):
    """Also across context shifts, which the second engine repeats at the same places."""
    options = {"n_ctx": 80, "keeps_exact": is_exact}
    original = task(0, prompt, n_predict=n_predict, n_keep=3)
    first = EngineHarness(FakeBackend(**options), context_shift=shifts)
    first.run(original)
    expected = first.tokens(0)
    n_delivered = min(n_delivered, max(len(expected) - 1, 0))
    second = EngineHarness(FakeBackend(**options), context_shift=shifts)
    second.run(msgspec.structs.replace(original, resume=expected[:n_delivered]))
    assert second.tokens(0) == expected[n_delivered:]
    assert second.done(0).stop_type is first.done(0).stop_type
    assert second.done(0).timings.predicted_n == first.done(0).timings.predicted_n


@pytest.mark.parametrize("is_exact", [False, True])
def test_what_was_delivered_is_evaluated_at_once_unless_exact_bits_are_promised(is_exact):
    bench = EngineHarness(FakeBackend(keeps_exact=is_exact))
    bench.run(
        msgspec.structs.replace(
            task(0, [3] * 40, n_predict=60), resume=alone(task(0, [3] * 40, n_predict=50))
        )
    )
    sizes = [len(chunk.tokens) for batch in bench.backend.batches for chunk in batch]
    assert sum(sizes) == 40 + 60 - 1
    assert len(bench.tokens(0)) == 10
    n_alone = sizes.count(1)
    assert n_alone == (59 if is_exact else 9)
    done = bench.done(0)
    assert (done.timings.prompt_n, done.timings.predicted_n) == (40, 60)


def test_the_front_knows_of_a_task_before_it_is_evaluated():
    """So that a task of whose first batch the engine dies is not sent to the next one for ever."""
    bench = EngineHarness()
    decode, known = bench.backend.decode, []

    def watched(chunks):
        known.append({event.task_id for event in bench.events if isinstance(event, Admitted)})
        return decode(chunks)

    bench.backend.decode = watched
    bench.run(task(7, [1, 2, 3], n_predict=2))
    assert known
    assert all(7 in ids for ids in known)


def test_generating_slots_get_a_token_in_every_step():
    bench = EngineHarness(FakeBackend(n_seq=3, n_ubatch=16), max_itl_ms=5)
    bench.engine.handle(task(0, [1, 2, 3], n_predict=100))
    bench.engine.handle(task(1, [3, 2, 1], n_predict=100))
    while len(bench.engine._scheduler.running(RequestPhase.GENERATING)) < 2:
        bench.engine.step()
    bench.engine.handle(task(2, [4] * 200, n_predict=1))
    counts = (len(bench.tokens(0)), len(bench.tokens(1)))
    for n in range(1, 10):
        bench.engine.step()
        assert (len(bench.tokens(0)), len(bench.tokens(1))) == (counts[0] + n, counts[1] + n)
    assert not bench.tokens(2), "the long prompt must not have fitted into those steps"


def test_without_continuous_batching_prompts_wait_until_nobody_writes():
    bench = EngineHarness(FakeBackend(n_seq=2, n_ubatch=16), cont_batching=False)
    bench.engine.handle(task(0, [1, 2, 3], n_predict=20))
    while not bench.tokens(0):
        bench.engine.step()
    bench.run(task(1, [3, 2, 1], n_predict=5))
    is_done = [event.task_id for event in bench.events if isinstance(event, Done)]
    first_of_1 = next(i for i, e in enumerate(bench.events) if isinstance(e, Tokens) and e.task_id == 1)
    assert is_done == [0, 1]
    assert all(event.task_id == 1 for event in bench.events[first_of_1:])


def test_one_prefix_is_evaluated_once_for_requests_that_arrive_together():
    bench = EngineHarness(FakeBackend(n_seq=8, n_ctx=1024, n_ubatch=32))
    prefix = [1 + i % 50 for i in range(700)]
    bench.run(*(task(i, [*prefix, 50 + i, 60, 61], n_predict=4) for i in range(8)))
    assert bench.backend.n_prompt_tokens_evaluated <= 1.1 * 700 + 8 * 3
    for i in range(8):
        assert bench.tokens(i) == alone(task(i, [*prefix, 50 + i, 60, 61], n_predict=4), n_ctx=1024)


def test_a_running_sequence_lends_its_prefix():
    bench = EngineHarness(FakeBackend(n_seq=2, n_ubatch=64))
    prefix = list(range(1, 51))
    bench.engine.handle(task(0, [*prefix, 7], n_predict=50))
    while not bench.tokens(0):
        bench.engine.step()
    bench.run(task(1, [*prefix, 9, 9, 9], n_predict=2))
    (admitted,) = bench.of(1, Admitted)
    assert admitted.n_cached == 44


def test_waiting_for_a_prefix_survives_the_cancel_of_its_maker():
    bench = EngineHarness(FakeBackend(n_seq=3, n_ubatch=16))
    prefix = [1 + i % 50 for i in range(100)]
    for i in range(3):
        bench.engine.handle(task(i, [*prefix, i + 1, 9], n_predict=2))
    bench.engine.step()
    bench.engine.handle(Cancel(0))
    bench.run()
    assert [len(bench.of(i, Done)) for i in range(3)] == [0, 1, 1]


def test_a_cancelled_request_frees_its_slot_within_a_step():
    bench = EngineHarness(FakeBackend(n_seq=1))
    bench.engine.handle(task(0, [1, 2, 3], n_predict=1000))
    bench.engine.step()
    bench.engine.handle(task(1, [5, 5, 5], n_predict=1))
    bench.engine.handle(Cancel(0))
    bench.engine.step()
    assert bench.of(1, Admitted)


def test_an_aborted_prompt_chunk_is_evaluated_again():
    bench = EngineHarness(FakeBackend(n_seq=1))
    decode = bench.backend.decode

    def aborted_once(chunks):
        bench.engine.abort_if_running(0)
        bench.backend.decode = decode
        return decode(chunks)

    bench.backend.decode = aborted_once
    bench.run(task(0, [1, 2, 3, 4]))
    assert bench.tokens(0) == alone(task(0, [1, 2, 3, 4]))
    assert not bench.backend.aborts


def test_an_abort_that_comes_too_late_hits_nobody():
    bench = EngineHarness(FakeBackend(n_seq=1))
    bench.engine.handle(task(0, [1, 2, 3, 4]))
    bench.engine.step()
    bench.engine.abort_if_running(0)
    assert not bench.backend.aborts


def test_an_abort_empties_a_model_that_cannot_be_cut():
    bench = EngineHarness(FakeBackend(n_seq=1, n_ubatch=16, can_cut=False))
    bench.engine.handle(task(0, [3] * 40))
    bench.engine.step()
    bench.backend.leaves_debris = True
    bench.run()
    assert bench.tokens(0) == alone(task(0, [3] * 40))


def test_only_a_lone_prompt_can_be_aborted():
    bench = EngineHarness(FakeBackend(n_seq=2))
    seen = []
    decode = bench.backend.decode

    def spy(chunks):
        seen.append(bench.engine._decoder._abortable)
        return decode(chunks)

    bench.backend.decode = spy
    bench.run(task(7, [1, 2, 3], n_predict=2))
    assert seen == [7, None]


def test_a_yielding_slot_leaves_its_state_in_ram():
    bench = EngineHarness(FakeBackend(n_seq=1))
    long = list(range(1, 60))
    bench.run(task(0, long, n_predict=1))
    bench.run(task(1, [7] * 30, n_predict=1))
    bench.run(task(2, [*long, 3], n_predict=4))
    (admitted,) = bench.of(2, Admitted)
    assert admitted.n_cached == 52
    assert bench.tokens(2) == alone(task(2, [*long, 3], n_predict=4))


def test_a_model_that_cannot_cut_falls_back_to_its_own_prompt():
    bench = EngineHarness(FakeBackend(n_seq=2, can_cut=False))
    bench.run(task(0, [1, 2, 3, 4, 5, 6], n_predict=4))
    bench.run(task(1, [1, 2, 3, 4, 9, 9], n_predict=4))
    assert bench.tokens(1) == alone(task(1, [1, 2, 3, 4, 9, 9], n_predict=4))


@pytest.mark.parametrize("cache_prompt", [True, False])
def test_cached_equals_uncached(cache_prompt):
    bench = EngineHarness(FakeBackend(n_seq=1))
    one = task(0, list(range(1, 40)), n_predict=10, cache_prompt=cache_prompt)
    bench.run(one)
    bench.run(msgspec.structs.replace(one, id=1))
    assert bench.tokens(0) == bench.tokens(1)
    assert bench.done(1).timings.cache_n == (28 if cache_prompt else 0)


def test_no_budget_only_evaluates():
    bench = EngineHarness()
    bench.run(task(0, [1, 2, 3], n_predict=0))
    assert bench.tokens(0) == []
    assert bench.done(0).stop_type is StopType.LIMIT
    assert bench.done(0).n_past == 3


@pytest.mark.parametrize("n_predict", [-1, -2])
def test_a_full_context_stops_and_says_so(n_predict):
    bench = EngineHarness(FakeBackend(n_ctx=64), context_shift=n_predict == -2)
    bench.run(task(0, [1] * 8, n_predict=n_predict))
    assert len(bench.tokens(0)) == 56
    assert bench.done(0).truncated
    assert bench.done(0).stop_type is StopType.LIMIT


def test_context_shift_goes_on_and_keeps_what_it_should():
    bench = EngineHarness(FakeBackend(n_ctx=64, adds_bos=True), context_shift=True)
    bench.run(task(0, [1, 2, 3, 4, 5], n_predict=200, n_keep=3, n_discard=10))
    assert len(bench.tokens(0)) == 200
    assert bench.done(0).truncated
    assert bench.backend.sequences[0][:4] == [1, 2, 3, 4]


def test_a_prompt_as_long_as_the_context_is_refused():
    bench = EngineHarness(FakeBackend(n_ctx=64))
    bench.run(task(0, [1] * 64))
    (failed,) = bench.of(0, Failed)
    assert failed.error.details == {"n_prompt_tokens": 64, "n_ctx": 64}


def test_streamed_text_is_the_whole_text_and_never_holds_a_stop_string():
    bench = EngineHarness()
    bench.run(task(0, [1, 2, 3], n_predict=60))
    whole = bench.text(0)
    stop = whole[20:24]
    bench.run(task(1, [1, 2, 3], n_predict=60, stop=(stop,)))
    assert bench.text(1) == whole[: whole.index(stop)]
    assert bench.done(1).stop_type is StopType.WORD
    assert bench.done(1).stopping_word == stop


def test_events_of_a_task_come_in_order():
    bench = EngineHarness()
    bench.run(task(0, [1, 2, 3]), task(1, [1, 2, 3]))
    kinds = defaultdict(list)
    for event in bench.events:
        kinds[event.task_id].append(type(event).__name__)
    for names in kinds.values():
        assert names[0] == "Admitted"
        assert names[-1] == "Done"
        assert names.count("Done") == 1


def test_an_empty_prompt_is_answered_by_nothing():
    bench = EngineHarness()
    bench.run(task(0, []))
    assert bench.tokens(0) == []
    assert bench.done(0).stop_type is StopType.NONE
    assert bench.done(0).timings.prompt_ms == 0


def test_a_swapped_request_whose_state_is_lost_fails_alone():
    bench = EngineHarness(FakeBackend(n_seq=2, n_ctx=100, n_cells=100, mixes_batches=True), cache_ram_mib=0)
    bench.backend.load = lambda seq, state, position: False
    for i in range(2):
        bench.engine.handle(task(i, [1 + i] * 30, n_predict=60))
    bench.run()
    assert [len(bench.of(i, Done)) for i in range(2)] == [1, 0]
    assert len(bench.of(1, Failed)) == 1


def test_a_decode_that_fails_ends_its_requests_and_no_others():
    bench = EngineHarness(FakeBackend(n_seq=2))
    decode = bench.backend.decode

    def fail_once(chunks):
        bench.backend.decode = decode
        raise CorralError("no such luck")

    bench.backend.decode = fail_once
    bench.run(task(0, [1] * 10), task(1, [2] * 10))
    assert [len(bench.of(i, Failed)) for i in range(2)] == [1, 0]
    assert bench.tokens(1) == alone(task(1, [2] * 10))
    assert bench.engine.heartbeat().decode_ms == 0


def test_a_request_that_goes_wrong_does_not_take_its_neighbours_along(capsys):
    bench = EngineHarness(FakeBackend(n_seq=3))
    open_sampler = bench.backend.open_sampler

    def open_bad(params, prompt, grammar=None):
        sampler = open_sampler(params, prompt)
        if prompt[0] == 2:
            sampler.sample = lambda logits, index: 1 / 0
        return sampler

    bench.backend.open_sampler = open_bad
    bench.run(*(task(i, [1 + i] * 10) for i in range(3)))
    assert [len(bench.of(i, Done)) for i in range(3)] == [1, 0, 1]
    (failed,) = bench.of(1, Failed)
    assert status_of(failed) == 500
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_late_generation_ends_at_the_next_new_line():
    bench = EngineHarness()
    bench.run(task(0, [1, 2, 3], n_predict=200, t_max_predict_ms=100))
    lines = bench.text(0).count("\n")
    assert bench.text(0).endswith("\n")
    assert lines >= 1
    assert len(bench.tokens(0)) < 200
    assert bench.done(0).stop_type is StopType.LIMIT


def test_minimum_indentation_ends_a_generation():
    bench = EngineHarness()
    bench.run(task(0, [1, 2, 3], n_predict=200, n_indent=9))
    assert bench.text(0).rstrip(" ").endswith("\n")
    assert bench.done(0).stop_type is StopType.LIMIT


def test_a_prompt_uses_the_last_cells_in_smaller_chunks_before_anybody_is_swapped_out():
    backend = FakeBackend(n_seq=2, n_ctx=100, n_cells=100, n_ubatch=64, mixes_batches=True)
    bench = EngineHarness(backend, max_itl_ms=1e6)
    bench.engine.handle(task(0, [1] * 30, n_predict=20))
    bench.engine.step()
    bench.engine.handle(task(1, [2] * 90, n_predict=1))
    bench.engine.step()
    sizes = []
    while bench.slots[1].request is not None and len(sizes) < 20:
        bench.engine.step()
        sizes.append(len(backend.sequences[1]))
    assert max(sizes) >= 30, "the room that was there was not used"
    bench.run()
    assert [len(bench.of(i, Done)) for i in range(2)] == [1, 1]


def test_requests_with_the_same_key_get_the_same_slot():
    """Prompts that begin alike go where the last one of their key was, and no tenant learns of another's."""
    bench = EngineHarness(FakeBackend())
    slots = {}
    for id, key in enumerate(["a", "b", "a", "b", "", "a"]):
        bench.run(task(id, [5, 6, 7 + id] * 4, prompt_cache_key=key))
        (slots[id],) = [event.id_slot for event in bench.of(id, Admitted)]
    assert slots[0] == slots[2] == slots[5] != slots[1] == slots[3]
    assert slots[4] not in (slots[0], slots[1])
    other = msgspec.structs.replace(task(9, [5, 6, 30] * 4, prompt_cache_key="a"), tenant=b"other")
    bench.run(other)
    assert [event.id_slot for event in bench.of(9, Admitted)] != [slots[0]]


def test_a_key_costs_no_longer_prefix():
    """What another slot has of a prompt is copied to the slot of the key."""
    bench = EngineHarness(FakeBackend())
    long = [5 + i % 40 for i in range(150)]
    bench.run(task(0, [9] * 30, prompt_cache_key="a"))
    bench.run(task(1, long[:70], prompt_cache_key="b"))
    bench.run(task(2, long, prompt_cache_key="a"))
    (first,), (third,) = bench.of(0, Admitted), bench.of(2, Admitted)
    assert third.id_slot == first.id_slot
    assert third.n_cached == 68
    assert bench.tokens(2) == alone(task(2, long))
