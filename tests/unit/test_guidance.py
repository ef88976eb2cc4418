"""Guided requests, each of them two sequences: whatever arrives in whatever order, on the fake backend."""

from __future__ import annotations

import gc
import os
import time
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.core.errors import CorralError
from corral.core.params import Guidance
from corral.core.result import Admitted, Done, Failed, StopType, Tokens
from corral.core.task import Busy, Cancel, FreeAdapter, LoadAdapter, SlotAction, Task, Verb
from corral.engine.guidance import guide
from corral.engine.request import RequestPhase
from tests.tools.examples import examples, some
from tests.tools.failure import status_of
from tests.tools.keyed import uniform
from tests.unit.action_harness import ActionHarness, content, n_open_files, refused
from tests.unit.engine_harness import grammar, task
from tests.unit.fake import EOG
from tests.unit.wide_backend import N_WIDE, WideBackend, expected, wide

LONG = [1 + i % 61 for i in range(100)]
BAD = [61 - i % 61 for i in range(70)]
THIRD = [1 + i * i % 59 for i in range(80)]
NEVER_DRAWN = N_WIDE + 1  # a token that begins what was not generated


class GuidanceHarness(ActionHarness):
    """A bench that watches pairs: in every batch, and when all is over."""

    def __init__(self, backend=None, **options):
        super().__init__(backend or WideBackend(), **options)
        self.n_together = 0
        self._decode = self.backend.decode
        self.backend.decode = self._watch

    def _watch(self, chunks):
        seqs = {c.seq for c in chunks}
        for slot in self.slots:
            positive = slot.request
            if positive is None or positive.negative is None or positive.phase is not RequestPhase.GENERATING:
                continue
            negative = positive.negative
            beside = next(s for s in self.slots if s.request is negative)
            assert negative.phase is RequestPhase.GENERATING
            if len(positive.pending) == len(negative.pending) == 1:
                assert (slot.id in seqs) == (beside.id in seqs), "a pair was torn apart"
                self.n_together += slot.id in seqs
        return self._decode(chunks)

    def run(self, *orders):
        max_steps = 3000
        for order in orders:
            self.engine.handle(order)
        while self.engine.has_work:
            if self.engine.is_waiting:
                time.sleep(0.0005)
            else:
                max_steps -= 1
            assert max_steps, "the engine does not come to an end"
            self.engine.step()
            self.check_mirrors()

    def ends(self, id):
        return [e for e in self.events if isinstance(e, Done | Failed) and e.task_id == id]

    def check_over(self):
        assert not self.engine.has_work
        assert all(slot.is_idle for slot in self.slots)
        assert all(not sampler.is_open for sampler in self.backend.samplers)
        assert len(self.slots) in (self.backend.n_seq, 2 * self.backend.n_seq)
        self.check_mirrors()


def guided(id, prompt, negative, scale=2.0, **params):
    return task(id, prompt, guidance=Guidance(scale, tuple(negative)), **params)


# --- the formula

logits = st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=40)


def log_softmax(row):
    row = np.array(row, np.float64)
    return row - row.max() - np.log(np.exp(row - row.max()).sum())


@given(logits, st.data(), st.floats(-10, 10))
@settings(deadline=None)
def test_logits_move_away_from_the_negative_ones(ours, data, scale):
    theirs = data.draw(st.lists(st.floats(-30, 30, width=32), min_size=len(ours), max_size=len(ours)))
    found = guide(np.array(ours, np.float32), np.array(theirs, np.float32), scale)
    a, b = log_softmax(ours), log_softmax(theirs)
    assert found.dtype == np.float32
    assert np.abs(found - (b + scale * (a - b))).max() < 1e-4 * max(1, abs(scale))


@given(logits, st.floats(-100, 100))
@settings(deadline=None)
def test_nothing_to_move_away_from_changes_no_probability(row, scale):
    found = guide(np.array(row, np.float32), np.array(row, np.float32), scale)
    assert np.abs(found - log_softmax(row)).max() < 1e-4


@given(logits, st.data())
@settings(deadline=None)
def test_a_scale_of_one_gives_the_distribution_itself_and_none_the_other_one(ours, data):
    theirs = data.draw(st.permutations(ours))
    rows = np.array(ours, np.float32), np.array(theirs, np.float32)
    assert np.abs(guide(*rows, 1.0) - log_softmax(ours)).max() < 1e-4
    assert np.abs(guide(*rows, 0.0) - log_softmax(theirs)).max() < 1e-4


@pytest.mark.parametrize("scale", [-3.0, 0.0, 0.5, 1.0, 1.5, 100.0])
def test_what_cannot_come_still_cannot_and_there_is_always_a_number(scale):
    banned = -np.inf
    ours = np.array([1.0, banned, banned, 2.0, 3.0], np.float32)
    theirs = np.array([0.5, 3.0, banned, banned, 1.0], np.float32)
    found = guide(ours, theirs, scale)
    assert not np.isnan(found).any()
    assert np.isneginf(found[1:3]).all()
    assert np.isfinite(found[[0, 4]]).all()


@pytest.mark.parametrize("scale", [-3.0, 1.0, 2.0])
def test_what_the_negative_prompt_rules_out_stays_as_probable_as_it_was(scale):
    ours = np.array([1.0, 2.0, 3.0], np.float32)
    theirs = np.array([1.0, -np.inf, 2.0], np.float32)
    assert abs(guide(ours, theirs, scale)[1] - log_softmax(ours)[1]) < 1e-4


def test_neither_row_is_changed():
    ours, theirs = wide([1]), wide([2])
    guide(ours, theirs, 3.0)
    assert (ours == wide([1])).all()
    assert (theirs == wide([2])).all()


# --- one pair

SHAPES = [{}, {"mixes_batches": True}, {"can_cut": False}, {"n_seq": 1}, {"n_ubatch": 16, "n_batch": 32}]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [-2.0, 0.0, 0.5, 3.0])
def test_an_answer_is_steered(shape, scale):
    pen = GuidanceHarness(WideBackend(**shape))
    one = guided(0, LONG, BAD, scale, n_predict=30)
    pen.run(one)
    assert pen.tokens(0) == expected(one)
    assert pen.tokens(0) != expected(task(0, LONG, n_predict=30))
    assert pen.n_together == 29
    pen.check_over()


def test_the_reference_agrees_with_arithmetic_in_double_precision():
    one = guided(0, LONG, BAD, 1.5, n_predict=60)
    ours, theirs = list(LONG), list(BAD)
    for i, token in enumerate(expected(one)):
        a, b = log_softmax(wide(ours)), log_softmax(wide(theirs))
        noise = np.array([uniform(1 + 1000 * k, i) for k in range(N_WIDE)])
        chances = b + 1.5 * (a - b) + 4 * noise
        chances[EOG] = -np.inf
        assert chances[token] > chances.max() - 1e-4
        ours.append(token)
        theirs.append(token)


def test_both_sequences_hold_the_same_answer():
    pen = GuidanceHarness(WideBackend(n_seq=2))
    pen.run(guided(0, LONG, BAD, n_predict=10))
    said = pen.tokens(0)[:-1]
    assert content(pen, 0) == [*LONG, *said]
    assert content(pen, 2) == [*BAD, *said]
    assert pen.done(0).n_past == len(LONG) + 9


def test_the_second_slots_appear_with_the_first_pair():
    pen = GuidanceHarness(WideBackend(n_seq=3))
    pen.run(task(0, LONG))
    assert len(pen.slots) == 3
    pen.run(guided(1, LONG, BAD))
    pen.run(guided(2, LONG, BAD))
    assert [slot.id for slot in pen.slots] == list(range(6))


def test_only_the_leader_is_reported():
    pen = GuidanceHarness(WideBackend(n_seq=1, n_ubatch=16))
    pen.run(guided(0, LONG[:20], BAD, n_predict=3))
    (admitted,) = pen.of(0, Admitted)
    assert (admitted.id_slot, admitted.n_cached) == (0, 0)
    done = pen.done(0)
    assert (done.timings.prompt_n, done.timings.predicted_n) == (20, 3)


@pytest.mark.parametrize(("n", "n_bad"), [(1, 1), (1, 90), (90, 1), (200, 9), (9, 200)])
def test_prompts_of_any_lengths(n, n_bad):
    pen = GuidanceHarness(WideBackend(n_seq=2, n_ubatch=16))
    one = guided(0, [3] * n, [4] * n_bad, n_predict=12)
    other = task(1, THIRD, n_predict=20)
    pen.run(one, other)
    assert pen.tokens(0) == expected(one)
    assert pen.tokens(1) == expected(other)


def test_no_budget_only_evaluates_both():
    pen = GuidanceHarness(WideBackend(n_seq=1))
    pen.run(guided(0, LONG, BAD, n_predict=0))
    assert pen.tokens(0) == []
    assert pen.done(0).stop_type is StopType.LIMIT
    assert [content(pen, i) for i in (0, 1)] == [LONG, BAD]


def test_an_empty_prompt_is_answered_by_nothing():
    pen = GuidanceHarness()
    pen.run(guided(0, [], BAD))
    assert pen.done(0).stop_type is StopType.NONE
    pen.check_over()


def test_an_end_of_generation_ends_both():
    pen = GuidanceHarness(WideBackend(n_seq=1))
    for seed in range(5):
        one = guided(seed, LONG, BAD, n_predict=-1)
        sampling = msgspec.structs.replace(one.params.sampling, seed=seed, logit_bias=())
        one = msgspec.structs.replace(one, params=msgspec.structs.replace(one.params, sampling=sampling))
        pen.run(one)
        assert pen.tokens(seed) == expected(one)
        assert pen.done(seed).stop_type is StopType.EOS
        pen.check_over()


def test_a_stop_string_ends_both():
    pen = GuidanceHarness(WideBackend(n_seq=1))
    pen.run(guided(0, LONG, BAD, n_predict=40))
    stop = pen.text(0)[20:24]
    pen.run(guided(1, LONG, BAD, n_predict=40, stop=(stop,)))
    assert pen.done(1).stop_type is StopType.WORD
    assert pen.text(0).startswith(pen.text(1) + stop)
    pen.check_over()


# --- prompts that are there already


def n_evaluated(pen):
    return sum(len(c.tokens) for batch in pen.backend.batches for c in batch)


def test_a_negative_prompt_is_evaluated_once():
    pen = GuidanceHarness(WideBackend(n_seq=2))
    pen.run(guided(0, LONG, BAD, n_predict=1))
    pen.backend.batches.clear()
    other = guided(1, THIRD, BAD, n_predict=1)
    pen.run(other)
    assert len(THIRD) < n_evaluated(pen) < len(THIRD) + 16
    assert pen.tokens(1) == expected(other)


def test_a_negative_prompt_is_found_among_the_prompts_and_the_other_way_round():
    pen = GuidanceHarness(WideBackend(n_seq=2))
    pen.run(task(0, LONG, n_predict=1))
    pen.backend.batches.clear()
    pen.run(guided(1, THIRD, LONG, n_predict=1))
    assert n_evaluated(pen) < len(THIRD) + 16
    pen.run(guided(2, LONG, BAD, n_predict=1))
    pen.backend.batches.clear()
    last = task(3, BAD, n_predict=1)
    pen.run(last)
    assert n_evaluated(pen) < 16
    assert pen.tokens(3) == expected(last)


def test_without_a_cache_both_are_evaluated():
    pen = GuidanceHarness(WideBackend(n_seq=1))
    for id in range(2):
        pen.run(guided(id, LONG, BAD, n_predict=1, cache_prompt=False))
    assert n_evaluated(pen) == 2 * (len(LONG) + len(BAD))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("prompt", [[3], [3] * 9, LONG])
def test_a_prompt_may_be_its_own_negative_one(shape, prompt):
    pen = GuidanceHarness(WideBackend(**shape))
    one = guided(0, prompt, prompt, n_predict=5)
    pen.run(one)
    assert pen.tokens(0) == expected(one)
    assert n_evaluated(pen) == len(prompt) + 2 * 4


@pytest.mark.parametrize("shape", [{}, {"mixes_batches": True}, {"can_cut": False}])
def test_answers_with_the_same_two_prompts_evaluate_each_once(shape):
    pen = GuidanceHarness(WideBackend(n_seq=4, **shape))
    tasks = [guided(i, LONG, BAD, seed=i, n_predict=6) for i in range(4)]
    pen.run(*tasks)
    assert [pen.tokens(i) for i in range(4)] == [expected(one) for one in tasks]
    assert n_evaluated(pen) == len(LONG) + len(BAD) + 4 * 2 * 5


def test_two_that_are_each_others_negative():
    pen = GuidanceHarness(WideBackend(n_seq=2, n_ubatch=16))
    tasks = [guided(0, LONG, BAD, n_predict=6), guided(1, BAD, LONG, n_predict=6)]
    pen.run(*tasks)
    assert [pen.tokens(i) for i in range(2)] == [expected(one) for one in tasks]
    assert n_evaluated(pen) == len(LONG) + len(BAD) + 2 * 2 * 5


def test_whoever_has_the_prompt_of_one_that_waits_for_its_negative_need_not_wait_too():
    pen = GuidanceHarness(WideBackend(n_seq=2, n_ubatch=16, n_ctx=1024), max_itl_ms=1)
    pen.engine.handle(guided(0, LONG, [*BAD, *[3] * 800], n_predict=1))
    pen.step_until(lambda: content(pen, 0) == LONG)
    pen.engine.handle(task(1, LONG, n_predict=1))
    pen.step_until(lambda: pen.of(1, Done))
    assert not pen.ends(0)
    pen.run()


def test_two_that_wait_for_each_other_do_not_wait_for_ever():
    """Each has evaluated its prompt, on top of a shifted context of its own slot that is of no use to the
    other one, whose negative prompt that is."""
    pen = GuidanceHarness(WideBackend(n_seq=3, n_ctx=128, n_ubatch=16), context_shift=True, max_itl_ms=1)
    for slot in range(2):
        pen.run(task(slot, [1 + slot] * 20, seed=slot, n_predict=150, id_slot=slot, n_keep=10))
    a, b = ([*content(pen, slot)[:60], *[50 + slot] * 12] for slot in range(2))
    assert max(pen.slots[slot].shifted_from for slot in range(2)) < 60
    common = [50, 51] * 20
    pen.engine.handle(task(2, [*b[:40], *common, *[3] * 40], n_predict=1, id_slot=2))
    pen.engine.step()
    tasks = [
        guided(10, a, b, id_slot=0, n_predict=4),
        guided(11, b, a, id_slot=1, n_predict=4),
    ]
    pen.run(*tasks)
    assert [len(pen.tokens(one.id)) for one in tasks] == [4, 4]


# --- contexts that run full


@pytest.mark.parametrize(("n", "n_bad"), [(20, 50), (50, 20), (30, 30), (63, 1), (1, 63)])
@pytest.mark.parametrize("shifts", [False, True])
def test_one_context_is_full_before_the_other(n, n_bad, shifts):
    pen = GuidanceHarness(WideBackend(n_seq=1, n_ctx=64), context_shift=shifts)
    one = guided(0, [5] * n, [6] * n_bad, n_predict=200, n_keep=7)
    pen.run(one)
    assert pen.tokens(0) == expected(one, 64, shifts)
    assert len(pen.tokens(0)) == (200 if shifts else 64 - max(n, n_bad))
    assert pen.done(0).stop_type is StopType.LIMIT
    if not shifts:
        assert pen.done(0).truncated
    pen.check_over()


def test_until_the_context_is_full():
    pen = GuidanceHarness(WideBackend(n_seq=1, n_ctx=64), context_shift=True)
    pen.run(guided(0, [5] * 20, [6] * 50, n_predict=-2))
    assert len(pen.tokens(0)) == 14
    assert pen.done(0).truncated


@pytest.mark.parametrize("adds_bos", [False, True])
@pytest.mark.parametrize("n_keep", [-1, 0, 5])
def test_each_keeps_the_beginning_of_its_own_prompt(n_keep, adds_bos):
    pen = GuidanceHarness(WideBackend(n_seq=1, n_ctx=64, adds_bos=adds_bos), context_shift=True)
    one = guided(0, LONG[:20], BAD[:30], n_predict=150, n_keep=n_keep, n_discard=9)
    pen.run(one)
    assert pen.tokens(0) == expected(one, 64, True, adds_bos)
    n_kept = {-1: 20, 0: 0, 5: 5}[n_keep] + (adds_bos and n_keep >= 0)
    assert content(pen, 0)[:n_kept] == LONG[:n_kept]
    assert content(pen, 1)[:n_kept] == BAD[:n_kept]


@pytest.mark.parametrize("n_bad", [63, 64, 65, 1000])
def test_a_negative_prompt_as_long_as_the_context_is_refused(n_bad):
    pen = GuidanceHarness(WideBackend(n_seq=1, n_ctx=64))
    pen.run(guided(0, [5], [6] * n_bad, n_predict=5))
    if n_bad < 64:
        assert len(pen.tokens(0)) == 1
        return
    (failed,) = pen.of(0, Failed)
    assert status_of(failed) == 400
    assert failed.error.details == {"n_prompt_tokens": n_bad, "n_ctx": 64}
    assert pen.backend.batches == []
    pen.check_over()


# --- grammars

TEXT = "a.BCDEFGH..b.IJ.KLMNOPQRSTUVWXYZABCDEFGHIJKLMNOPQRSTUVWXYZ...c"
N_FREE = sum(not letter.isupper() for letter in TEXT)


@pytest.mark.parametrize("shape", SHAPES)
def test_forced_tokens_go_to_both(shape):
    pen = GuidanceHarness(WideBackend(**shape))
    one = guided(0, LONG, BAD, n_predict=-1, constraint=grammar(TEXT))
    pen.run(one)
    assert pen.tokens(0) == expected(one)
    done = pen.done(0)
    assert done.stop_type is StopType.EOS
    assert done.timings.forced_n == len(TEXT) - N_FREE
    assert content(pen, 0)[len(LONG) :] == content(pen, pen.backend.n_seq)[len(BAD) :]
    pen.check_over()


@pytest.mark.parametrize("shifts", [False, True])
@pytest.mark.parametrize("room", [2, 3, 7, 9, 30])
def test_forced_tokens_stay_inside_both_contexts(room, shifts):
    n_ctx = len(LONG) + room
    for prompt, negative in ((LONG, BAD), (BAD, LONG)):
        pen = GuidanceHarness(WideBackend(n_seq=1, n_ctx=n_ctx), context_shift=shifts)
        one = guided(0, prompt, negative, n_predict=-1, constraint=grammar(TEXT), n_keep=3)
        pen.run(one)
        assert pen.tokens(0) == expected(one, n_ctx, shifts)
        assert pen.done(0).truncated_grammar != shifts


def test_a_wrong_grammar_fails_before_anything_is_evaluated():
    pen = GuidanceHarness()
    pen.run(guided(0, LONG, BAD, constraint=grammar("wrong")))
    assert status_of(pen.of(0, Failed)[0]) == 400
    assert pen.backend.batches == []
    pen.check_over()


# --- lost engines


@pytest.mark.parametrize("shifts", [False, True])
@pytest.mark.parametrize("text", [None, TEXT])
def test_a_lost_engine_goes_on_behind_any_delivered_token(shifts, text):
    constraint = grammar(text) if text else None
    one = guided(0, LONG, BAD, n_predict=60, n_keep=3, constraint=constraint)
    pen = GuidanceHarness(WideBackend(n_seq=1, n_ctx=128), context_shift=shifts)
    pen.run(one)
    whole, events = pen.tokens(0), pen.of(0, Tokens)
    assert whole == expected(one, 128, shifts)
    for n in some(range(len(events))):
        delivered = [token for event in events[:n] for token in event.tokens]
        later = GuidanceHarness(WideBackend(n_seq=1, n_ctx=128), context_shift=shifts)
        later.run(msgspec.structs.replace(one, resume=delivered))
        assert delivered + later.tokens(0) == whole
        assert "".join(e.text for e in events[:n]) + later.text(0) == pen.text(0)
        assert later.done(0).stop_type is pen.done(0).stop_type
        assert [content(later, i) for i in (0, 1)] == [content(pen, i) for i in (0, 1)]


# --- what goes wrong


@pytest.mark.parametrize("when", [0, 2, 5, 9, 12])
@pytest.mark.parametrize("mixes", [False, True])
def test_a_decode_that_fails_ends_both_and_no_others(when, mixes):
    """Prompts of 3 and 2 chunks, or a token for both, or for all."""
    pen = GuidanceHarness(WideBackend(n_seq=2, n_ubatch=40, mixes_batches=mixes))
    decode, n_calls, hit = pen.backend.decode, 0, set()

    def fail_once(chunks):
        nonlocal n_calls
        n_calls += 1
        if n_calls == when + 1:
            hit.update(pen.slots[c.seq].request.id for c in chunks)
            raise CorralError("no such luck")
        return decode(chunks)

    pen.backend.decode = fail_once
    tasks = [guided(0, LONG, BAD), task(1, THIRD)]
    pen.run(*tasks)
    assert hit
    for one in tasks:
        (end,) = pen.ends(one.id)
        assert isinstance(end, Failed) == (one.id in hit)
        if one.id not in hit:
            assert pen.tokens(one.id) == expected(one)
    pen.check_over()
    for one in tasks:
        pen.run(msgspec.structs.replace(one, id=one.id + 10))
        assert pen.tokens(one.id + 10) == expected(one)


@pytest.mark.parametrize("index", [0, 3])
@pytest.mark.parametrize("mixes", [False, True])
def test_a_sampler_that_fails_ends_both_and_no_others(index, mixes, capsys):
    pen = GuidanceHarness(WideBackend(n_seq=3, mixes_batches=mixes))
    open_sampler = pen.backend.open_sampler

    def open_bad(params, prompt, grammar=None):
        sampler = open_sampler(params, prompt)
        if params.seed == 7:
            sampler.sample = lambda logits, i, sample=sampler.sample: 1 // (i - index) and sample(logits, i)
        return sampler

    pen.backend.open_sampler = open_bad
    tasks = [guided(0, LONG, BAD, seed=7), guided(1, LONG, BAD, seed=8), task(2, BAD, seed=9)]
    pen.run(*tasks)
    (failed,) = pen.ends(0)
    assert status_of(failed) == 500
    assert "ZeroDivisionError" in capsys.readouterr().err
    for one in tasks[1:]:
        assert pen.tokens(one.id) == expected(one)
    pen.check_over()


def test_a_sampler_that_cannot_be_opened_ends_both():
    pen = GuidanceHarness(WideBackend(n_seq=1))

    def refuse(params, prompt, grammar=None):
        raise CorralError("no such sampler")

    pen.backend.open_sampler = refuse
    pen.run(guided(0, LONG, BAD))
    (failed,) = pen.ends(0)
    assert failed.error.message == "no such sampler"
    pen.check_over()


def test_who_finds_no_room_for_a_second_sequence_is_told_and_all_others_go_on():
    pen = GuidanceHarness(WideBackend(n_seq=2))
    reserve = pen.backend.reserve

    def refuse(n_seq):
        raise CorralError("cannot create a context")

    pen.backend.reserve = refuse
    other = task(1, THIRD, n_predict=30)
    pen.engine.handle(other)
    pen.step_until(lambda: len(pen.tokens(1)) == 3)
    pen.run(guided(0, LONG, BAD))
    (failed,) = pen.ends(0)
    assert failed.error.message == "cannot create a context"
    assert pen.tokens(1) == expected(other)
    assert len(pen.slots) == 2
    pen.check_over()
    pen.backend.reserve = reserve
    again = guided(2, LONG, BAD)
    pen.run(again)
    assert pen.tokens(2) == expected(again)


@pytest.mark.parametrize("shape", [{}, {"can_cut": False}, {"mixes_batches": True}])
@pytest.mark.parametrize("when", range(5))
def test_an_aborted_chunk_of_either_is_evaluated_again(shape, when):
    pen = GuidanceHarness(WideBackend(n_seq=1, n_ubatch=40, **shape))
    decode, n_calls = pen.backend.decode, 0

    def abort_some(chunks):
        nonlocal n_calls
        n_calls += 1
        if n_calls == when + 1:
            pen.engine.abort_if_running(0)
        return decode(chunks)

    pen.backend.decode = abort_some
    one = guided(0, LONG, BAD)
    pen.run(one)
    assert pen.tokens(0) == expected(one)
    pen.check_over()


def test_a_context_that_is_lost_ends_both_once():
    pen = GuidanceHarness(WideBackend(n_seq=1, can_cut=False))
    pen.engine.handle(guided(0, LONG, BAD, n_predict=50))
    pen.step_until(lambda: len(pen.tokens(0)) == 3)
    pen.backend.leaves_debris = True
    pen.run()
    (end,) = pen.ends(0)
    assert "lost" in end.error.message
    pen.check_over()
    again = guided(1, LONG, BAD)
    pen.run(again)
    assert pen.tokens(1) == expected(again)


# --- cancelling


@pytest.mark.parametrize("shape", [{}, {"mixes_batches": True}, {"can_cut": False}])
def test_cancelled_after_any_step_both_slots_are_free(shape):
    one, heir = guided(0, LONG, BAD, n_predict=8), guided(1, THIRD, LONG, n_predict=4)
    n_steps = 0
    while True:
        pen = GuidanceHarness(WideBackend(n_seq=1, n_ubatch=16, **shape))
        pen.engine.handle(one)
        for _ in range(n_steps):
            pen.engine.step()
        if not pen.engine.has_work:
            break
        pen.engine.handle(Cancel(0))
        assert not pen.engine.has_work
        pen.check_over()
        assert pen.ends(0) == []
        pen.run(heir)
        assert pen.tokens(1) == expected(heir)
        n_steps += 1
    assert n_steps > 10


def test_a_queued_pair_can_be_cancelled():
    pen = GuidanceHarness(WideBackend(n_seq=1))
    pen.engine.handle(guided(0, LONG, BAD))
    pen.engine.handle(guided(1, LONG, BAD))
    pen.engine.step()
    pen.engine.handle(Cancel(1))
    pen.run()
    assert (len(pen.ends(0)), len(pen.ends(1))) == (1, 0)
    pen.check_over()


@pytest.mark.parametrize("cancelled", [0, 1])
def test_twins_go_on_without_the_first(cancelled):
    pen = GuidanceHarness(WideBackend(n_seq=3, n_ubatch=16))
    tasks = [guided(0, LONG, BAD), guided(1, BAD, LONG), task(2, BAD)]
    for one in tasks:
        pen.engine.handle(one)
    pen.engine.step()
    pen.engine.handle(Cancel(cancelled))
    pen.run()
    for one in tasks:
        if one.id != cancelled:
            assert pen.tokens(one.id) == expected(one)
    pen.check_over()


# --- slots and actions


def test_a_pinned_request_gets_its_slot_and_its_follower_any():
    pen = GuidanceHarness(WideBackend(n_seq=3))
    tasks = [guided(i, LONG[: 20 + i], BAD, id_slot=2 - i) for i in range(3)]
    pen.run(*tasks)
    assert [pen.of(i, Admitted)[0].id_slot for i in range(3)] == [2, 1, 0]
    assert [pen.tokens(i) for i in range(3)] == [expected(one) for one in tasks]


def test_all_slots_guided_at_once():
    pen = GuidanceHarness(WideBackend(n_seq=4))
    tasks = [guided(i, LONG[i:], BAD[i:], n_predict=20) for i in range(10)]
    pen.run(*tasks)
    assert [pen.tokens(i) for i in range(10)] == [expected(one) for one in tasks]
    assert max(len(batch) for batch in pen.backend.batches) == 8


def test_a_follower_takes_the_slot_of_no_request():
    pen = GuidanceHarness(WideBackend(n_seq=2))
    pen.engine.handle(guided(0, LONG, BAD, n_predict=100))
    pen.step_until(lambda: pen.tokens(0))
    pen.engine.handle(task(1, THIRD, n_predict=1))
    pen.step_until(lambda: pen.of(1, Done))
    assert not pen.ends(0)
    pen.run()


@pytest.mark.parametrize("slot", [2, 3, 4, -1])
@pytest.mark.parametrize("verb", Verb)
@pytest.mark.parametrize("busy", Busy)
def test_the_slots_of_followers_are_out_of_reach(verb, slot, busy):
    pen = GuidanceHarness(WideBackend(n_seq=2))
    pen.run(guided(0, LONG, BAD))
    pen.run(guided(1, BAD, LONG))
    before = [content(pen, i) for i in range(4)]
    fd = os.memfd_create("state")
    fields = {"source": 0} if verb is Verb.FORK else {}
    with refused(404, "numbered from 0 to 1"):
        pen.do(verb, slot, fd if verb in (Verb.SAVE, Verb.RESTORE) else -1, busy=busy, **fields)
    os.close(fd)
    assert [content(pen, i) for i in range(4)] == before


@pytest.mark.parametrize("source", [2, 3])
def test_a_followers_slot_cannot_be_forked(source):
    pen = GuidanceHarness(WideBackend(n_seq=2))
    pen.run(guided(0, LONG, BAD))
    with refused(404, "numbered from 0 to 1"):
        pen.do(Verb.FORK, 0, source=source)


def test_slots_are_saved_restored_forked_shifted_and_erased_beside_pairs():
    pen = GuidanceHarness(WideBackend(n_seq=2))
    fd = os.memfd_create("state")
    running = guided(0, LONG, BAD, n_predict=120, id_slot=0)
    pen.engine.handle(running)
    pen.step_until(lambda: pen.tokens(0))
    pen.run(task(1, THIRD, n_predict=5, id_slot=1))
    held = content(pen, 1)
    assert pen.do(Verb.SAVE, 1, fd).n_tokens == len(held)
    assert pen.do(Verb.ERASE, 1).n_tokens == len(held)
    assert pen.do(Verb.RESTORE, 1, fd, is_ours=True).n_tokens == len(held)
    assert content(pen, 1) == held
    assert pen.do(Verb.FORK, 0, source=1).n_tokens == len(held)
    assert content(pen, 0) == held
    assert pen.do(Verb.SHIFT, 0, n_keep=4, n_discard=10).n_tokens == len(held) - 10
    assert pen.do(Verb.TOKENS, 0).tokens == [*held[:4], *held[14:]]
    assert pen.tokens(0) == expected(running)
    os.close(fd)


def test_an_action_waits_for_the_end_of_a_pair():
    pen = GuidanceHarness(WideBackend(n_seq=1))
    pen.engine.handle(guided(0, LONG, BAD, n_predict=5))
    pen.step_until(lambda: pen.tokens(0))
    with refused(409, "busy"):
        pen.do(Verb.ERASE, 0, busy=Busy.REFUSE)
    assert pen.done(0)
    assert pen.do(Verb.ERASE, 0).n_tokens == len(LONG) + 4


def test_what_a_pair_leaves_in_a_slot_can_be_saved_and_taken_up_elsewhere():
    first, second = GuidanceHarness(WideBackend(n_seq=1)), GuidanceHarness(WideBackend(n_seq=1))
    fd = os.memfd_create("state")
    first.run(guided(0, LONG, BAD, n_predict=10))
    first.do(Verb.SAVE, 0, fd)
    second.do(Verb.RESTORE, 0, fd, is_ours=True)
    os.close(fd)
    following = guided(1, [*LONG, *first.tokens(0), *[NEVER_DRAWN] * 9], BAD, n_predict=5)
    assert second.cached(following) > len(LONG)
    assert second.tokens(1) == expected(following)


def test_a_report_tells_of_no_slot_that_nobody_knows():
    pen = GuidanceHarness(WideBackend(n_seq=2))
    pen.run(guided(0, LONG, BAD, n_predict=1))
    report = pen.report(task(1, BAD, n_predict=1))
    assert report.n_cached > len(BAD) - 16
    assert report.id_slot < 2


def test_followers_do_not_draft():
    """Drafts are drawn token by token, which is the leader's part; its draws need both rows."""
    pen = GuidanceHarness(WideBackend(n_seq=2), draft_exact=False)
    assert pen.engine._speculation.n_exact > 1
    rounds = [1, 2, 3, 4, 5, 6, 7] * 8
    tasks = [guided(0, rounds, rounds[2:], n_predict=30), task(1, rounds, n_predict=30)]
    pen.run(*tasks)
    assert [pen.tokens(i) for i in range(2)] == [expected(one) for one in tasks]
    assert pen.done(0).timings.draft_n == 0


# --- adapters


def test_adapters_apply_to_both():
    pen = GuidanceHarness(WideBackend(n_seq=2))
    pen.engine.handle(LoadAdapter(id=100, adapter=0, path="a"))
    one, other = guided(0, LONG, BAD, lora=((0, 1.0),)), guided(1, LONG, BAD)
    pen.run(one, other)
    assert pen.tokens(0) == expected(one) != expected(other)
    assert pen.tokens(1) == expected(other)


@pytest.mark.parametrize("ends", ["done", "cancelled", "failed"])
def test_an_adapter_goes_as_soon_as_a_pair_has_ended(ends):
    pen = GuidanceHarness(WideBackend(n_seq=1))
    pen.engine.handle(LoadAdapter(id=100, adapter=0, path="a"))
    gc.collect()
    gc.disable()
    try:
        pen.engine.handle(guided(0, LONG, BAD, lora=((0, 1.0),)))
        pen.step_until(lambda: pen.tokens(0))
        pen.engine.handle(FreeAdapter(0))
        assert pen.backend.adapters.loaded
        if ends == "cancelled":
            pen.engine.handle(Cancel(0))
        elif ends == "failed":
            pen.backend.samplers[-1].sample = fail
        pen.run()
        pen.engine.step()
        assert pen.backend.adapters.loaded == {}
    finally:
        gc.enable()


def fail(*_):
    raise CorralError("no such luck")


# --- too few cells


def fits(one: Task, n_said: int, n_cells: int) -> bool:
    """Whether a task has room if nobody else wants any; its last token is not evaluated, nor are those that
    are forced at the end."""
    guidance, n = one.params.guidance, max(n_said - 1, 0)
    return len(one.prompt) + n + (len(guidance.negative) + n if guidance else 0) <= n_cells


def assert_all_end(pen, tasks, n_cells):
    for one in tasks:
        (end,) = pen.ends(one.id)
        said = expected(one, n_ctx=n_cells)
        if isinstance(end, Done):
            assert pen.tokens(one.id) == said
        else:
            assert not fits(one, len(said), n_cells)
            assert "context is full" in end.error.message
    pen.check_over()


def cramped(n_cells, n_seq=3, n_ubatch=16):
    backend = WideBackend(n_seq=n_seq, n_ubatch=n_ubatch, n_ctx=n_cells, n_cells=n_cells, mixes_batches=True)
    return GuidanceHarness(backend, cache_ram_mib=0)


def test_a_pair_that_does_not_fit_is_told_so():
    pen = cramped(120)
    tasks = [guided(0, LONG, BAD, n_predict=4)]
    pen.run(*tasks)
    assert_all_end(pen, tasks, 120)
    assert pen.of(0, Failed)


def test_a_pair_that_grows_out_of_the_cells_is_told_so():
    pen = cramped(120)
    tasks = [guided(0, LONG[:40], BAD[:40], n_predict=60)]
    pen.run(*tasks)
    assert_all_end(pen, tasks, 120)
    assert len(pen.tokens(0)) == 21
    assert pen.of(0, Failed)


def test_a_pair_that_was_swapped_out_comes_back_as_one():
    pen = cramped(150)
    tasks = [task(0, THIRD[:40], n_predict=60), guided(1, LONG[:30], BAD[:30], n_predict=30)]
    pen.run(*tasks)
    assert_all_end(pen, tasks, 150)


def test_two_pairs_that_do_not_fit_together_take_turns():
    pen = cramped(150)
    tasks = [guided(i, LONG[i : i + 30], BAD[i : i + 30], n_predict=30) for i in range(3)]
    pen.run(*tasks)
    assert_all_end(pen, tasks, 150)


def test_a_swapped_pair_whose_state_is_lost_fails_alone_and_once():
    pen = cramped(150)
    pen.backend.load = lambda seq, state, position: False
    tasks = [task(0, THIRD[:40], n_predict=60), guided(1, LONG[:30], BAD[:30], n_predict=30)]
    pen.run(*tasks)
    assert isinstance(pen.ends(0)[0], Done)
    (end,) = pen.ends(1)
    assert "could not be restored" in end.error.message
    pen.check_over()


def test_a_swapped_pair_can_be_cancelled():
    pen = cramped(150)
    pen.engine.handle(task(0, THIRD[:40], n_predict=60))
    pen.engine.handle(guided(1, LONG[:30], BAD[:30], n_predict=30))
    pen.step_until(lambda: any(slot.request and slot.request.swapped for slot in pen.slots))
    pen.engine.handle(Cancel(1))
    heir = guided(2, BAD[:20], LONG[:20])
    pen.run(heir)
    assert pen.tokens(2) == expected(heir, n_ctx=150)
    assert pen.ends(1) == []
    pen.check_over()


def test_a_pair_of_which_one_half_cannot_be_moved_out_stays_whole():
    pen = cramped(150)
    save = pen.backend.save

    def save_some(seq, memory=None):
        return save(seq, memory) if seq < 3 else None

    pen.backend.save = save_some
    tasks = [task(0, THIRD[:40], n_predict=60), guided(1, LONG[:30], BAD[:30], n_predict=30)]
    pen.run(*tasks)
    assert [len(pen.ends(one.id)) for one in tasks] == [1, 1]
    for one in tasks:
        if isinstance(pen.ends(one.id)[0], Done):
            assert pen.tokens(one.id) == expected(one, n_ctx=150)
    pen.check_over()


# --- whatever happens

beginnings = st.sampled_from([LONG, BAD, THIRD, [3] * 100])
prompts = st.builds(
    lambda start, n, rest: [*start[:n], *rest],
    beginnings,
    st.integers(1, 60),
    st.lists(st.integers(1, 3), max_size=12),
)
guidances = st.none() | st.builds(
    lambda scale, negative: Guidance(scale, tuple(negative)),
    st.sampled_from([-2.0, 0.0, 0.5, 3.0]),
    prompts,
)
grammars = st.none() | st.text("ab.AB", min_size=1, max_size=20).map(grammar)
wishes = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2),
        "n_predict": st.integers(0, 12),
        "guidance": guidances,
        "constraint": grammars,
        "cache_prompt": st.sampled_from([True, True, False]),
        "id_slot": st.integers(-1, 2),
    }
)
requests = st.tuples(st.just("task"), st.tuples(prompts, wishes))
cancels = st.tuples(st.just("cancel"), st.integers(0, 15))
steps = st.tuples(st.just("steps"), st.integers(1, 6))
acts = st.tuples(
    st.just("action"),
    st.tuples(
        st.sampled_from(list(Verb)),
        st.integers(0, 2),
        st.integers(0, 2),
        st.integers(0, 1),
        st.sampled_from([Busy.WAIT, Busy.WAIT, Busy.REFUSE]),
    ),
)
scripts = st.lists(requests | cancels | steps, min_size=2, max_size=16)


def play(pen, script, files=()):
    """Carry a script out; returns the orders that were not cancelled."""
    started: list[Any] = []
    cancelled = set()
    for kind, value in script:
        if kind == "task":
            prompt, wish = value
            started.append(task(len(started), prompt, **wish))
            pen.engine.handle(started[-1])
        elif kind == "action" and files:
            verb, slot, source, i, busy = value
            fd = os.dup(files[i]) if verb in (Verb.SAVE, Verb.RESTORE) else -1
            fields: dict[str, Any] = {
                "slot": slot,
                "source": source,
                "busy": busy,
                "fd": fd,
                "n_keep": 3,
                "n_discard": 5,
            }
            started.append(SlotAction(id=len(started), verb=verb, **fields))
            pen.engine.handle(started[-1])
        elif kind == "cancel" and value < len(started) and not pen.ends(value):
            cancelled.add(value)
            pen.engine.handle(Cancel(value))
        elif kind == "steps":
            for _ in range(value):
                if pen.engine.has_work:
                    pen.engine.step()
                    pen.check_mirrors()
    pen.run()
    assert not any(pen.ends(id) for id in cancelled)
    return [order for order in started if order.id not in cancelled]


few_examples = examples(80)


@given(scripts, st.sampled_from([{}, {"mixes_batches": True}, {"can_cut": False}, {"n_batch": 32}]))
@few_examples
def test_every_task_ends_once_and_answers_as_it_should(script, shape):
    pen = GuidanceHarness(WideBackend(n_seq=3, n_ubatch=16, **shape), max_itl_ms=5)
    left = play(pen, script)
    for one in left:
        (end,) = pen.ends(one.id)
        assert isinstance(end, Done)
        assert pen.tokens(one.id) == expected(one)
    pen.check_over()


@given(scripts, st.booleans(), st.integers(0, 10))
@few_examples
def test_also_where_contexts_run_full(script, mixes, n_keep):
    """Prompts of up to 72 tokens, and 30 more for each answer."""
    pen = GuidanceHarness(
        WideBackend(n_seq=3, n_ubatch=16, n_ctx=76, mixes_batches=mixes), context_shift=True
    )
    script = [
        (kind, (value[0], {**value[1], "n_predict": 30, "n_keep": n_keep, "id_slot": -1}))
        if kind == "task"
        else (kind, value)
        for kind, value in script
    ]
    for one in play(pen, script):
        (end,) = pen.ends(one.id)
        assert isinstance(end, Done)
        assert pen.tokens(one.id) == expected(one, 76, True)
    pen.check_over()


@given(scripts, st.integers(75, 200))
@few_examples
def test_running_out_of_cells_loses_nothing(script, n_cells):
    pen = cramped(n_cells)
    assert_all_end(pen, play(pen, script), n_cells)


@given(
    st.lists(requests | cancels | steps | acts, min_size=3, max_size=16),
    st.sampled_from([{}, {"can_cut": False}]),
)
@examples(50)
def test_also_in_a_mixture_with_actions(script, shape):
    pen = GuidanceHarness(WideBackend(n_seq=3, n_ubatch=16, **shape))
    n_before = n_open_files()
    files = [os.memfd_create(f"state {i}") for i in range(2)]
    left = play(pen, script, files)
    pen.engine._actions._files.shutdown()
    for order in left:
        ends = [e for e in pen.events if e.task_id == order.id and not isinstance(e, Admitted | Tokens)]
        if isinstance(order, SlotAction):
            assert len(ends) == 1
        else:
            assert isinstance(pen.ends(order.id)[0], Done)
            assert pen.tokens(order.id) == expected(order)
    pen.check_over()
    for fd in files:
        os.close(fd)
    assert n_open_files() == n_before


@given(prompts, wishes, st.integers(0, 12), st.booleans())
@few_examples
def test_resuming_after_any_token_continues_the_same(prompt, wish, n_delivered, shifts):
    """A forced run is delivered as a whole, and so it is resumed."""
    n_ctx = 76
    one = task(0, prompt, **{**wish, "id_slot": -1, "constraint": None}, n_keep=3)
    whole = expected(one, n_ctx, shifts)
    resumed = msgspec.structs.replace(one, resume=whole[:n_delivered][: max(len(whole) - 1, 0)])
    pen = GuidanceHarness(WideBackend(n_seq=1, n_ctx=n_ctx), context_shift=shifts)
    pen.run(resumed)
    assert resumed.resume + pen.tokens(0) == whole
    pen.check_over()
