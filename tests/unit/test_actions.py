"""Actions on slots and the tiers of the cache, through the engine, on the fake backend."""

from __future__ import annotations

import errno
import os
import queue
import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.errors import CorralError
from corral.core.result import Admitted, Done, Failed, SlotReport, Tier
from corral.core.settings import EngineSettings
from corral.core.task import Busy, Cancel, SlotAction, Stop, Verb
from corral.engine import loop
from corral.engine.generation_engine import GenerationEngine
from corral.engine.saved import NEVER
from corral.engine.ses1 import Ses1
from tests.tools.examples import examples
from tests.tools.wait import wait_until
from tests.unit.action_harness import (
    LONG,
    OTHER,
    SECONDS,
    ActionHarness,
    ExactBackend,
    content,
    held_up,
    n_open_files,
    refused,
)
from tests.unit.engine_harness import alone, task
from tests.unit.fake import FakeBackend


@pytest.fixture
def file():
    fd = os.memfd_create("state")
    yield fd
    os.close(fd)


@pytest.fixture
def closes(monkeypatch):
    """How often each descriptor was closed."""
    counts: dict[int, int] = {}
    close = os.close

    def counted(fd):
        counts[fd] = counts.get(fd, 0) + 1
        close(fd)

    monkeypatch.setattr(os, "close", counted)
    return counts


def flip(fd, at):
    (byte,) = os.pread(fd, 1, at)
    os.pwrite(fd, bytes([byte ^ 1]), at)


# --- save and restore


@pytest.mark.parametrize("options", [{}, {"can_cut": False}, {"mixes_batches": True}, {"adds_bos": True}])
@pytest.mark.parametrize("id_slot", [0, 3])
def test_restored_in_another_engine_a_conversation_continues_as_it_would_have(file, options, id_slot):
    first, second = ActionHarness(FakeBackend(**options)), ActionHarness(FakeBackend(**options))
    first.run(task(0, LONG, n_predict=10))
    report = first.do(Verb.SAVE, 0, file)
    n_tokens = len(LONG) + 9
    assert (report.id_slot, report.n_tokens, report.n_bytes) == (0, n_tokens, os.fstat(file).st_size)
    second.run(task(0, OTHER, n_predict=1, id_slot=id_slot))
    report = second.do(Verb.RESTORE, id_slot, file, is_ours=True)
    assert (report.id_slot, report.n_tokens, report.n_bytes) == (id_slot, n_tokens, os.fstat(file).st_size)
    assert report.ms > 0
    assert content(second, id_slot) == content(first)
    following = task(9, [*LONG, *first.tokens(0), *[7] * 9], n_predict=20, id_slot=id_slot)
    assert second.cached(following) >= n_tokens - 3
    assert second.tokens(9) == alone(following)


def test_an_empty_slot_is_saved_and_restored(file):
    lab = ActionHarness()
    lab.run(task(0, LONG, id_slot=1))
    assert lab.do(Verb.SAVE, 0, file).n_tokens == 0
    assert lab.do(Verb.RESTORE, 1, file, is_ours=True).n_tokens == 0
    assert content(lab, 1) == []


def test_what_a_restore_replaces_is_kept_in_ram(file):
    lab = ActionHarness(FakeBackend(n_seq=1))
    lab.do(Verb.SAVE, 0, file)
    lab.run(task(0, LONG))
    lab.do(Verb.RESTORE, 0, file)
    assert lab.report(task(1, LONG)).tier is Tier.RAM


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_refused_restore_leaves_every_slot_as_it_was(file, is_ours):
    lab = ActionHarness()
    for id_slot in range(2):
        lab.run(task(id_slot, LONG, id_slot=id_slot))
    lab.do(Verb.SAVE, 0, file)
    flip(file, 300)
    with refused(400, "damaged"):
        lab.do(Verb.RESTORE, 1, file, is_ours=is_ours)
    for id_slot in range(2):
        assert len(content(lab, id_slot)) == 107
        following = task(2 + id_slot, [*content(lab, id_slot), *[7] * 9], id_slot=id_slot)
        assert lab.cached(following) == 104
        assert lab.tokens(2 + id_slot) == alone(following)


@pytest.mark.parametrize("cache_ram_mib", [0, 64])
def test_a_state_that_does_not_fit_leaves_its_slot_as_it_was(file, cache_ram_mib):
    lab = ActionHarness()
    lab.run(task(0, LONG))
    lab.do(Verb.SAVE, 0, file)
    backend = FakeBackend(n_seq=2, n_cells=106, mixes_batches=True)
    small = ActionHarness(backend, cache_ram_mib=cache_ram_mib)
    small.run(task(0, LONG[:50], id_slot=1))
    before = content(small, 1)
    with refused(400, "does not fit"):
        small.do(Verb.RESTORE, 1, file)
    assert content(small, 1) == before
    following = task(1, [*before, *[7] * 9], id_slot=1)
    assert small.cached(following) == len(before) // 4 * 4
    assert small.tokens(1) == alone(following)


def test_cached_sequences_give_way_to_a_state_that_shares_their_room(file):
    lab = ActionHarness(FakeBackend(n_seq=3, n_cells=250, mixes_batches=True))
    lab.run(task(0, LONG, id_slot=0))
    lab.do(Verb.SAVE, 0, file)
    lab.run(task(1, OTHER, id_slot=1))
    assert lab.do(Verb.RESTORE, 2, file).n_tokens == 107
    assert [len(content(lab, i)) for i in range(3)] == [0, 107, 107], "the least recently used one"
    assert lab.report(task(2, OTHER)).tier is Tier.LIVE


def test_a_slot_is_settled_before_it_is_read(file):
    lab = ActionHarness()
    lab.run(task(0, LONG))
    calls = []
    settle, save = lab.backend.flush_pending, lab.backend.save
    lab.backend.flush_pending = lambda seq: calls.append("settle") or settle(seq)
    lab.backend.save = lambda *args: calls.append("save") or save(*args)
    lab.do(Verb.SAVE, 0, file)
    assert calls[-2:] == ["settle", "save"]
    lab.backend.flush_pending = lambda seq: False
    with refused(500, "cannot be read now"):
        lab.do(Verb.SAVE, 0, file)
    assert len(content(lab)) == 107


@pytest.mark.parametrize(("code", "status"), [(errno.ENOSPC, 507), (errno.EIO, 500)])
def test_a_file_that_cannot_be_written_harms_nothing_else(file, monkeypatch, code, status):
    lab = ActionHarness()
    lab.run(task(0, LONG))
    before = content(lab)

    def fail(fd, data):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        with refused(status, os.strerror(code)):
            lab.do(Verb.SAVE, 0, file)
    assert content(lab) == before
    assert lab.do(Verb.SAVE, 0, file).n_tokens == 107


def test_an_action_whose_file_did_not_arrive_is_refused():
    lab = ActionHarness()
    for verb in (Verb.SAVE, Verb.RESTORE):
        with refused(503, "too many open files"):
            lab.do(verb)


# --- the other verbs


def test_tokens_and_how_many_were_evaluated():
    lab = ActionHarness()
    lab.run(task(0, LONG, id_slot=2))
    report = lab.do(Verb.TOKENS, 2)
    assert report.tokens == lab.backend.sequences[2]
    assert (report.n_tokens, report.n_evaluated) == (107, 100)
    lab.run(task(1, LONG[:80], id_slot=2, n_predict=1))
    assert (lab.do(Verb.TOKENS, 2).n_evaluated, len(content(lab, 2))) == (8, 80)


def test_erased_tokens_are_forgotten_in_ram_too_and_others_are_not():
    lab = ActionHarness(FakeBackend(n_seq=1))
    for id, prompt in enumerate([LONG, OTHER, LONG]):
        lab.run(task(id, prompt, n_predict=1))
    assert lab.do(Verb.ERASE).n_tokens == 100
    assert lab.backend.sequences == [[]]
    assert lab.cached(task(8, LONG)) == 0
    assert lab.cached(task(9, OTHER)) == 92


@pytest.mark.parametrize(("n_keep", "n_discard"), [(0, 1), (10, 50), (0, 100), (99, 1), (50, 50)])
def test_a_shift_is_a_cut_in_the_middle_and_what_is_left_serves_as_a_prompt(n_keep, n_discard):
    """Asked for by somebody, it is what they want to go on with: nothing of it is evaluated again."""
    lab = ActionHarness()
    lab.run(task(0, LONG, n_predict=1))
    left = LONG[:n_keep] + LONG[n_keep + n_discard :]
    assert lab.do(Verb.SHIFT, 0, n_keep=n_keep, n_discard=n_discard).n_tokens == len(left)
    assert content(lab) == left
    following = task(1, [*left, *[7] * 8], id_slot=0)
    assert lab.cached(following) == (len(left) // 4 * 4 if len(left) >= 8 else 0)
    assert lab.tokens(1) == alone(following)


def test_a_shift_that_is_larger_than_the_slot_is_refused_and_changes_nothing():
    lab = ActionHarness()
    lab.run(task(0, LONG, n_predict=1))
    with refused(400, "Field 'n_discard': .* exceed the slot's 100 tokens"):
        lab.do(Verb.SHIFT, 0, n_keep=50, n_discard=51)
    assert content(lab) == LONG


@pytest.mark.parametrize("what", ["can_shift", "can_cut"])
def test_a_shift_that_the_model_cannot_do_is_not_supported(what):
    lab = ActionHarness()
    setattr(lab.backend, what, False)
    lab.run(task(0, LONG, n_predict=1))
    with refused(501, "cannot be shifted"):
        lab.do(Verb.SHIFT, 0, n_keep=1, n_discard=1)
    assert content(lab) == LONG


@pytest.mark.parametrize("options", [{}, {"can_cut": False}])
def test_a_fork_evaluates_nothing_and_both_go_their_own_ways(options):
    lab = ActionHarness(FakeBackend(**options))
    lab.run(task(0, LONG, id_slot=0), task(1, OTHER, id_slot=2))
    replaced, n_batches = content(lab, 2), len(lab.backend.batches)
    report = lab.do(Verb.FORK, 2, source=0)
    assert (report.id_slot, report.n_tokens) == (2, 107)
    assert content(lab, 2) == content(lab, 0)
    assert len(lab.backend.batches) == n_batches
    history = content(lab, 0)
    ways = [task(10 + i, [*history, i, *[7] * 9], seed=i, id_slot=i) for i in (0, 2)]
    lab.run(*ways)
    for way in ways:
        assert lab.of(way.id, Admitted)[0].n_cached >= 104
        assert lab.tokens(way.id) == alone(way)
    assert lab.report(task(20, [*replaced, *[7] * 9])).tier is Tier.RAM


def test_a_fork_of_nothing_is_nothing():
    lab = ActionHarness()
    lab.run(task(0, LONG, id_slot=1))
    assert lab.do(Verb.FORK, 1, source=0).n_tokens == 0
    assert content(lab, 1) == []


def test_a_slot_is_not_forked_into_itself():
    lab = ActionHarness()
    lab.run(task(0, LONG))
    with refused(400, "Field 'slot': .*itself"):
        lab.do(Verb.FORK, 0, source=0)
    assert len(content(lab)) == 107


@pytest.mark.parametrize("slot", [-1, 4, 1000])
@pytest.mark.parametrize("verb", Verb)
def test_slots_that_do_not_exist(file, verb, slot):
    lab = ActionHarness()
    with refused(404, f"slot {slot} does not exist; slots are numbered from 0 to 3"):
        lab.do(verb, slot, file, source=1)
    with refused(404, f"slot {slot} does not exist; slots are numbered from 0 to 3"):
        lab.do(Verb.FORK, 0, source=slot)


# --- whose turn it is


def busy_lab(**options) -> ActionHarness:
    """Slot 0 is working."""
    lab = ActionHarness(**options)
    lab.engine.handle(task(0, LONG, id_slot=0, n_predict=30))
    for _ in range(8):
        lab.engine.step()
    assert lab.tokens(0)
    return lab


@pytest.mark.parametrize("verb", Verb)
def test_an_action_waits_for_its_turn(file, verb):
    lab = busy_lab()
    action = lab.order(verb, 0, file, source=1, n_discard=1)
    lab.engine.handle(action)
    lab.run(task(1, OTHER, id_slot=1, n_predict=1))
    names = [type(event) for event in lab.events if event.task_id in (0, action.id)]
    assert names[-1] is (Failed if verb is Verb.RESTORE else SlotReport)
    assert names[-2] is Done
    assert lab.tokens(0) == alone(task(0, LONG, n_predict=30))


@pytest.mark.parametrize("verb", Verb)
@pytest.mark.parametrize("is_source", [False, True])
def test_an_action_that_does_not_wait_is_refused(file, verb, is_source):
    lab = busy_lab()
    fields = {"slot": 1, "source": 0} if is_source else {"slot": 0, "source": 1}
    if is_source and verb is not Verb.FORK:
        fields["slot"] = 0
    action = lab.order(verb, fd=file, busy=Busy.REFUSE, n_discard=1, **fields)
    lab.engine.handle(action)
    with refused(409, "slot 0 is busy"):
        lab.answer(action)
    lab.run()
    assert lab.tokens(0) == alone(task(0, LONG, n_predict=30))


def test_a_slot_is_kept_for_a_restore_while_its_file_is_read(file, monkeypatch):
    lab = ActionHarness()
    saved_file(lab, file)
    with held_up(monkeypatch, "read") as began:
        action = lab.order(Verb.RESTORE, 0, file, busy=Busy.REFUSE)
        lab.engine.handle(action)
        lab.engine.handle(task(1, OTHER, id_slot=0, n_predict=1))
        lab.engine.handle(task(2, OTHER, n_predict=1))
        lab.engine.step()
        assert began.wait(SECONDS)
        for _ in range(10):
            lab.engine.step()
        assert not lab.of(1, Admitted)
        assert lab.of(2, Done), "others need not wait"
    lab.run()
    assert lab.answer(action).n_tokens == 107
    assert lab.tokens(1) == alone(task(1, OTHER, n_predict=1))


def test_tokens_can_be_read_from_a_busy_slot():
    lab = busy_lab()
    action = lab.order(Verb.TOKENS, 0, busy=Busy.IGNORE)
    lab.engine.handle(action)
    assert lab.answer(action).tokens == lab.backend.sequences[0]
    assert not lab.of(0, Done)
    lab.run()
    assert lab.tokens(0) == alone(task(0, LONG, n_predict=30))


@pytest.mark.parametrize("id_slot", [0, -1])
def test_a_later_request_waits_for_an_action_on_the_slot_it_needs(id_slot):
    lab = busy_lab(backend=FakeBackend(n_seq=1))
    action = lab.order(Verb.TOKENS)
    lab.engine.handle(action)
    lab.run(task(1, OTHER, id_slot=id_slot))
    assert lab.answer(action).tokens[:100] == LONG
    order = [event.task_id for event in lab.events if isinstance(event, Done | SlotReport | Admitted)]
    assert order == [0, 0, action.id, 1, 1]


def test_a_later_request_takes_another_slot_meanwhile():
    lab = busy_lab()
    action = lab.order(Verb.FORK, 1, source=0)
    lab.engine.handle(action)
    lab.engine.handle(task(1, OTHER, n_predict=1))
    for _ in range(5):
        lab.engine.step()
    assert lab.of(1, Admitted)[0].id_slot in (2, 3), "slot 1 is idle, but it is somebody else's turn"
    assert lab.of(1, Done)
    assert not lab.is_answered(action)
    lab.run()
    assert lab.answer(action).n_tokens == len(content(lab, 1)) == 129


def test_an_earlier_request_goes_first():
    lab = busy_lab(backend=FakeBackend(n_seq=1))
    action = lab.order(Verb.TOKENS)
    lab.run(task(1, OTHER, n_predict=1), action)
    assert lab.answer(action).tokens == OTHER


def test_an_action_that_does_not_wait_does_not_wait_behind_another_action():
    lab = busy_lab()
    lab.engine.handle(lab.order(Verb.FORK, 1, source=0))
    lab.engine.step()
    action = lab.order(Verb.TOKENS, 1, busy=Busy.REFUSE)
    lab.engine.handle(action)
    lab.engine.step()
    assert lab.is_answered(action), "slot 0 will be busy for a while"


def test_a_save_that_does_not_wait_does_not_wait_for_the_file_of_another_one(file, monkeypatch):
    lab = ActionHarness()
    lab.run(task(0, LONG, id_slot=0))
    with held_up(monkeypatch, "write") as began:
        first = lab.order(Verb.SAVE, 0, file)
        lab.engine.handle(first)
        while not began.is_set():
            lab.engine.step()
        second, third = (lab.order(verb, 0, file, busy=Busy.REFUSE) for verb in (Verb.SAVE, Verb.ERASE))
        for action in (second, third):
            lab.engine.handle(action)
            lab.engine.step()
        with refused(409, "slot 0 is being written"):
            lab.answer(second)
        assert lab.answer(third).n_tokens == 107
    lab.run()
    assert lab.answer(first).n_tokens == 107
    assert lab.do(Verb.SAVE, 0, file, busy=Busy.REFUSE).n_tokens == 0


# --- descriptors


def saved_file(lab, fd):
    lab.run(task(0, LONG, id_slot=1))
    lab.do(Verb.SAVE, 1, fd)


@pytest.mark.parametrize("verb", [Verb.SAVE, Verb.RESTORE])
@pytest.mark.parametrize("way", ["done", "not found", "refused", "damaged", "bug"])
def test_a_descriptor_is_closed_exactly_once(file, closes, capsys, verb, way):
    lab = ActionHarness()
    saved_file(lab, file)
    if way == "refused":
        lab.engine.handle(task(5, OTHER, id_slot=1))
        lab.engine.step()
    if way == "damaged":
        flip(file, 100)
    if way == "bug":
        lab.backend.save = lab.backend.load = lambda *args: 1 / 0
    action = lab.order(verb, 9 if way == "not found" else 1, file, busy=Busy.REFUSE)
    n_before = n_open_files()
    closes.clear()
    lab.run(action)
    lab.engine._actions._files.shutdown()
    assert closes[action.fd] == 1
    assert n_open_files() == n_before - 1
    assert len([event for event in lab.events if event.task_id == action.id]) == 1


@pytest.mark.parametrize("verb", [Verb.SAVE, Verb.RESTORE])
def test_cancelled_while_it_waits_for_a_turn_its_file_is_closed_at_once(file, closes, verb):
    lab = busy_lab()
    action = lab.order(verb, 0, file)
    closes.clear()
    lab.engine.handle(action)
    wait_until(lambda: not any(job.is_in_work for job in lab.engine._coroutines._pending))
    lab.engine.handle(Cancel(action.id))
    assert closes[action.fd] == 1
    lab.run()
    assert closes[action.fd] == 1
    assert not lab.is_answered(action)


@pytest.mark.parametrize(("verb", "method"), [(Verb.SAVE, "write"), (Verb.RESTORE, "read")])
def test_cancelled_in_the_middle_of_its_file_that_is_closed_when_it_is_not_used_any_more(
    file, closes, monkeypatch, verb, method
):
    lab = ActionHarness()
    saved_file(lab, file)
    with held_up(monkeypatch, method) as began:
        action = lab.order(verb, 1, file)
        closes.clear()
        lab.engine.handle(action)
        lab.step_until(began.is_set)
        lab.engine.handle(Cancel(action.id))
        assert action.fd not in closes
        assert not lab.engine.has_work
    lab.engine._actions._files.shutdown()
    assert closes[action.fd] == 1
    assert not lab.is_answered(action)
    assert len(content(lab, 1)) == 107


def test_others_go_on_while_a_state_is_saved(file, monkeypatch):
    """Even in the very slot: what is written was taken out of it before."""
    lab = ActionHarness()
    lab.run(task(0, LONG))
    before = content(lab)
    with held_up(monkeypatch, "write") as began:
        action = lab.order(Verb.SAVE, 0, file)
        lab.engine.handle(action)
        lab.step_until(began.is_set)
        lab.engine.handle(task(1, OTHER, id_slot=0))
        lab.step_until(lambda: lab.of(1, Done))
        assert not lab.is_answered(action)
    lab.run()
    assert lab.tokens(1) == alone(task(1, OTHER))
    lab.do(Verb.RESTORE, 3, file, is_ours=True)
    assert content(lab, 3) == before


def test_one_state_of_a_slot_at_a_time_is_written(file, monkeypatch):
    """Memory holds it until then; states of other slots are written meanwhile."""
    lab = ActionHarness()
    for i in range(2):
        lab.run(task(i, LONG, id_slot=i))
    with held_up(monkeypatch, "write") as began:
        lab.engine.handle(lab.order(Verb.SAVE, 0, file))
        lab.step_until(began.is_set)
        began.clear()
        lab.engine.handle(lab.order(Verb.SAVE, 0, file))
        for _ in range(20):
            lab.engine.step()
        assert not began.wait(0.02)
        assert lab.engine.is_waiting
        lab.engine.handle(lab.order(Verb.SAVE, 1, file))
        lab.step_until(began.is_set)
    lab.run()
    assert sum(isinstance(event, SlotReport) for event in lab.events) == 3


def test_an_engine_that_only_waits_for_a_file_sleeps_until_it_is_woken(file, monkeypatch):
    inbox, answers = queue.SimpleQueue(), queue.SimpleQueue()
    engine = GenerationEngine(
        FakeBackend(), EngineSettings(model="fake"), answers.put, wake=lambda: inbox.put(loop.WAKE)
    )
    steps = []
    step = engine.step
    engine.step = lambda: steps.append(step())
    thread = threading.Thread(target=loop.run, args=(engine, inbox), daemon=True)
    thread.start()
    with held_up(monkeypatch, "write") as began:
        inbox.put(SlotAction(id=5, verb=Verb.SAVE, slot=0, fd=os.dup(file)))
        assert began.wait(SECONDS)
        time.sleep(0.05)
        assert len(steps) <= 4
    (report,) = answers.get(timeout=SECONDS)
    inbox.put(Stop())
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert isinstance(report, SlotReport)
    assert len(steps) <= 6


@pytest.mark.parametrize(
    "other", [task(1, LONG, id_slot=0), SlotAction(id=1, verb=Verb.TOKENS, slot=0)], ids=["task", "action"]
)
def test_an_engine_sleeps_also_if_somebody_waits_for_a_slot_whose_file_is_read(file, monkeypatch, other):
    lab = ActionHarness()
    with held_up(monkeypatch, "read") as began:
        lab.engine.handle(lab.order(Verb.RESTORE, 0, file))
        lab.engine.handle(other)
        lab.engine.step()
        assert began.wait(SECONDS)
        for _ in range(3):
            lab.engine.step()
        is_asleep = lab.engine.is_waiting
    lab.run()
    assert is_asleep, "there is nothing to do, but it steps as fast as it can"


@pytest.mark.parametrize(("slot", "status"), [(0, 409), (9, 404)])
def test_no_file_is_read_behind_its_close(file, monkeypatch, slot, status):
    """A refused action is over at once, and its descriptor may be another file's by then."""
    lab = busy_lab()
    open_when_read, read = [], Ses1.read
    answered = threading.Event()

    def late(self, fd, is_ours):
        assert answered.wait(SECONDS)
        open_when_read.append(os.path.exists(f"/proc/self/fd/{fd}"))
        return read(self, fd, is_ours)

    monkeypatch.setattr(Ses1, "read", late)
    with refused(status, "slot"):
        lab.do(Verb.RESTORE, slot, file, busy=Busy.REFUSE)
    answered.set()
    lab.engine._actions._files.shutdown()
    assert all(open_when_read)


def test_an_engine_does_not_sleep_while_somebody_can_begin(file, monkeypatch):
    """One waits for a file, the other one only for a turn that is over."""
    lab = ActionHarness()
    saved_file(lab, file)
    with held_up(monkeypatch, "read") as began:
        lab.engine.handle(lab.order(Verb.RESTORE, 2, file))
        lab.engine.step()
        assert began.wait(SECONDS)
        action = lab.order(Verb.TOKENS, 0)
        lab.engine.handle(action)
        lab.engine.handle(task(5, OTHER, id_slot=0, n_predict=1))
        for _ in range(20):
            lab.engine.step()
            assert lab.of(5, Done) or not lab.engine.is_waiting, "nobody would wake it"
        assert lab.of(5, Done)
    lab.run()
    assert lab.is_answered(action)


def test_a_cancelled_action_leaves_its_slot_to_those_who_do_not_wait(file, monkeypatch):
    lab = ActionHarness()
    with held_up(monkeypatch, "read"):
        action = lab.order(Verb.RESTORE, 0, file)
        lab.engine.handle(action)
        lab.engine.step()
        lab.engine.handle(Cancel(action.id))
        assert not lab.engine.has_work
        assert lab.do(Verb.TOKENS, 0, busy=Busy.REFUSE).n_tokens == 0


# --- contexts that were shifted


def alone_exactly(one) -> list[int]:
    lab = ActionHarness(ExactBackend(n_ctx=128), context_shift=True)
    lab.run(one)
    return lab.tokens(one.id)


def shifted_lab(**options) -> ActionHarness:
    """Slot 0 ran full, and its context was shifted behind the first 12 tokens."""
    lab = ActionHarness(ExactBackend(n_ctx=128, **options), context_shift=True)
    lab.run(task(0, LONG, n_predict=60, n_keep=12, id_slot=0))
    assert lab.done(0).truncated
    assert lab.slots[0].shifted_from == 12
    return lab


@pytest.mark.parametrize(
    ("wish", "n_cached"),
    [
        ({}, 12),
        ({"n_cache_reuse": 1000}, 40),
        ({"id_slot": 0}, 40),
        ({"id_slot": 1}, 0),
    ],
)
def test_what_moved_by_itself_serves_only_those_who_take_it(wish, n_cached):
    lab = shifted_lab()
    following = task(1, [*content(lab)[:40], *[7] * 10], **wish)
    assert lab.cached(following) == n_cached
    assert (lab.tokens(1) == alone_exactly(following)) == (n_cached < 40)


def test_what_moved_is_known_in_ram_in_files_in_forks_and_behind_another_shift(file):
    lab = shifted_lab()
    prompt = [*content(lab)[:40], *[7] * 10]
    lab.do(Verb.FORK, 1, source=0)
    lab.do(Verb.SAVE, 1, file)
    lab.do(Verb.SHIFT, 1, n_keep=4, n_discard=4)
    assert lab.slots[1].shifted_from == 8
    other = ActionHarness(ExactBackend(n_ctx=128))
    other.do(Verb.RESTORE, 2, file, is_ours=True)
    assert other.slots[2].shifted_from == 12
    assert other.cached(task(1, prompt)) == 12
    assert other.slots[2].shifted_from == NEVER
    single = shifted_lab(n_seq=1)
    single.run(task(1, OTHER, n_predict=1))
    assert single.report(task(2, prompt)).tier is Tier.NONE
    single.run(task(3, OTHER, n_predict=1))
    assert single.report(task(4, prompt, n_cache_reuse=1000)).tier is Tier.RAM


# --- runs that move

MIXED = list(range(1, 61))


@pytest.mark.parametrize(("n_cache_reuse", "n_moved"), [(0, 0), (8, 20), (20, 20), (21, 0)])
def test_what_is_further_back_moves_down_if_it_is_long_enough(n_cache_reuse, n_moved):
    lab = ActionHarness()
    lab.run(task(0, MIXED, n_predict=1, id_slot=0))
    shorter = task(1, MIXED[:12] + MIXED[30:50] + [62] * 8, n_cache_reuse=n_cache_reuse, id_slot=0)
    report = lab.report(shorter)
    assert (report.tier, report.n_cached, report.n_moved) == (Tier.LIVE, 12 + n_moved, n_moved)
    assert lab.tokens(1) == alone(shorter)
    assert lab.slots[0].shifted_from == (12 if n_moved else NEVER)


def test_several_runs_move_also_out_of_ram():
    lab = ActionHarness(FakeBackend(n_seq=1))
    lab.run(task(0, MIXED, n_predict=1))
    lab.run(task(1, OTHER, n_predict=1))
    shorter = task(2, MIXED[:16] + MIXED[20:30] + MIXED[35:52] + [62] * 8, n_cache_reuse=10)
    report = lab.report(shorter)
    assert (report.tier, report.n_cached, report.n_moved) == (Tier.RAM, 43, 27)
    assert lab.tokens(2) == alone(shorter)


def test_a_model_that_cannot_be_cut_moves_nothing():
    lab = ActionHarness(FakeBackend(can_cut=False))
    lab.run(task(0, MIXED, n_predict=1, id_slot=0))
    assert lab.cached(task(1, MIXED[30:50] + [62] * 8, n_cache_reuse=8, id_slot=0)) == 0


def test_what_stays_in_place_before_a_run_that_moves_is_reported_too():
    lab = ActionHarness()
    lab.run(task(0, MIXED, n_predict=1, id_slot=0))
    report = lab.report(task(1, MIXED[:10] + MIXED[30:50] + [62] * 8, n_cache_reuse=1, id_slot=0))
    assert (report.n_cached, report.n_moved) == (30, 20)


def test_a_twin_is_not_served_what_it_does_not_take():
    lab = ActionHarness(ExactBackend(n_ctx=128), slot_prompt_similarity=0.1)
    lab.run(task(0, MIXED, n_predict=1, id_slot=0))
    prompt = MIXED[:12] + MIXED[30:50] + [62] * 8
    same_prompt_waiters = [task(1, prompt, n_cache_reuse=8), task(2, prompt)]
    lab.run(*same_prompt_waiters)
    assert lab.of(1, Admitted)[0].n_cached == 32
    assert lab.tokens(2) == alone_exactly(same_prompt_waiters[1])


# --- explanations


def test_reports_of_live_tokens():
    lab = ActionHarness()
    first = lab.report(task(0, LONG, n_predict=1, id_slot=0))
    assert (first.tier, first.id_slot, first.n_common) == (Tier.NONE, -1, 0)
    assert (first.token, first.cached_token) == (LONG[0], None)
    own = lab.report(task(1, LONG, n_predict=1, id_slot=0))
    assert (own.tier, own.id_slot, own.n_cached, own.n_common) == (Tier.LIVE, 0, 92, 100)
    assert (own.token, own.cached_token) == (None, None)
    neighbour = lab.report(task(2, [*LONG[:51], *[9] * 20], n_predict=1, id_slot=3))
    assert (neighbour.tier, neighbour.id_slot, neighbour.n_cached) == (Tier.LIVE, 0, 48)
    assert (neighbour.n_common, neighbour.token, neighbour.cached_token) == (51, 9, LONG[51])
    unwanted = lab.report(task(3, LONG, n_predict=1, cache_prompt=False, id_slot=1))
    assert (unwanted.tier, unwanted.n_cached, unwanted.n_common) == (Tier.NONE, 0, 100)


def test_reports_of_ram_and_of_those_who_ask_for_none():
    lab = ActionHarness(FakeBackend(n_seq=1))
    lab.run(task(0, LONG, n_predict=1))
    assert lab.of(0, Admitted)[0].report.tier is Tier.NONE, "the monitor has one too"
    lab.run(task(1, OTHER, n_predict=1))
    report = lab.report(task(2, [*LONG, 3]))
    assert (report.tier, report.id_slot, report.n_cached, report.n_common) == (Tier.RAM, -1, 92, 100)
    assert (report.token, report.cached_token) == (3, None)


def test_reports_of_what_is_no_longer_cached():
    lab = ActionHarness(FakeBackend(n_seq=1), cache_ram_mib=0)
    lab.run(task(0, LONG, n_predict=1))
    lab.run(task(1, OTHER, n_predict=1))
    report = lab.report(task(2, LONG))
    assert (report.n_cached, report.n_evicted) == (0, 64)
    assert lab.report(task(3, LONG)).n_evicted == 0


def test_a_twin_is_told_where_its_prompt_was_evaluated():
    lab = ActionHarness()
    lab.run(*(task(i, LONG, id_slot=i + 1, cache_report=True) for i in range(2)))
    report = lab.of(1, Admitted)[0].report
    assert (report.tier, report.id_slot, report.n_cached, report.n_common) == (Tier.LIVE, 1, 100, 100)


def test_a_state_that_cannot_be_loaded_is_not_reported_as_cached():
    lab = ActionHarness(FakeBackend(n_seq=1))
    lab.run(task(0, LONG, n_predict=1))
    lab.run(task(1, OTHER, n_predict=1))

    def fail(seq, state, position):
        lab.backend.sequences[seq] = []
        return False

    lab.backend.load = fail
    lab.report(task(2, LONG))


# --- whatever happens

prompts = (
    st.integers(0, 2)
    .flatmap(
        lambda i: st.tuples(
            st.just([MIXED, LONG, OTHER][i]), st.integers(1, 60), st.lists(st.integers(1, 3), max_size=12)
        )
    )
    .map(lambda t: [*t[0][: t[1]], *t[2]])
)
requests = st.builds(
    lambda prompt, n, slot, reuse: ("task", (prompt, n, slot, reuse)),
    prompts,
    st.integers(1, 12),
    st.integers(-1, 2),
    st.sampled_from([0, 0, 4, 9]),
)
acts = st.builds(
    lambda verb, slot, source, file, busy, n_keep, n_discard: (
        "action",
        (
            verb,
            {"slot": slot, "source": source, "busy": busy, "n_keep": n_keep, "n_discard": n_discard},
            file,
        ),
    ),
    st.sampled_from(list(Verb)),
    st.integers(0, 3),
    st.integers(-1, 2),
    st.integers(0, 2),
    st.sampled_from([Busy.WAIT, Busy.WAIT, Busy.REFUSE]),
    st.integers(0, 40),
    st.integers(1, 40),
)
others = st.tuples(st.just("cancel"), st.integers(0, 15)) | st.tuples(st.just("steps"), st.integers(1, 6))
scripts = st.lists(requests | acts | others, min_size=2, max_size=16)


def test_what_is_cached_in_the_slot_of_one_who_waits_gives_way():
    """The last one waits for the first one's prompt, on top of 41 tokens that nobody needs."""
    lab = ActionHarness(
        FakeBackend(n_seq=2, n_ubatch=16, n_ctx=110, n_cells=110, mixes_batches=True), cache_ram_mib=0
    )
    prompt = [*MIXED, *[1] * 12]
    tasks = [task(0, prompt), task(1, MIXED[:40], n_predict=2, id_slot=1), task(2, prompt, id_slot=1)]
    lab.run(*tasks)
    for one in tasks:
        assert lab.tokens(one.id) == alone(one)


shapes = st.sampled_from([{}, {"can_cut": False}, {"n_ctx": 110, "n_cells": 110, "mixes_batches": True}])


@given(scripts, shapes, st.sampled_from([0, 64]))
@examples(200)
def test_every_order_is_answered_once_and_tasks_as_if_alone(script, shape, ram):
    """Also in a random mixture with actions on the same slots; no descriptor is left."""
    lab = ActionHarness(FakeBackend(n_seq=3, n_ubatch=16, **shape), cache_ram_mib=ram)
    n_before = n_open_files()
    files = [os.memfd_create(f"state {i}") for i in range(3)]
    started, cancelled = _play(lab, script, files)
    lab.run()
    lab.engine._actions._files.shutdown()
    ends = [e.task_id for e in lab.events if isinstance(e, Done | Failed | SlotReport)]
    for order in started:
        if order.id not in cancelled:
            assert ends.count(order.id) == 1
            if not isinstance(order, SlotAction):
                assert lab.tokens(order.id) == alone(order)
    errors = [CorralError.from_info(event.error) for event in lab.events if isinstance(event, Failed)]
    assert not [error for error in errors if error.status == 500]
    for fd in files:
        os.close(fd)
    assert n_open_files() == n_before


def _play(lab, script, files):
    started: list[Any] = []
    cancelled = set()
    for kind, value in script:
        if kind == "task":
            prompt, n, slot, reuse = value
            started.append(task(len(started), prompt, n_predict=n, id_slot=slot, n_cache_reuse=reuse))
        elif kind == "action":
            verb, fields, i = value
            fd = os.dup(files[i]) if verb in (Verb.SAVE, Verb.RESTORE) else -1
            started.append(SlotAction(id=len(started), verb=verb, fd=fd, **fields))
        elif kind == "cancel" and value < len(started):
            cancelled.add(value)
            lab.engine.handle(Cancel(value))
        elif kind == "steps":
            for _ in range(value):
                if lab.engine.has_work:
                    lab.engine.step()
                    lab.check_mirrors()
        if kind in ("task", "action"):
            lab.engine.handle(started[-1])
    return started, cancelled


steps_of_a_talk = st.lists(
    st.tuples(
        prompts,
        st.integers(-1, 1),  # the slot whose content it continues, if any
        st.integers(9, 120),
        st.sampled_from([{}, {}, {"n_cache_reuse": 4}, {"id_slot": 0}, {"id_slot": 1}]),
        st.integers(0, 30),
        st.integers(0, 200),
    ),
    min_size=2,
    max_size=7,
)


@given(steps_of_a_talk, st.sampled_from([0, 64]))
@examples(100)
def test_shifts_and_moves_of_others_change_no_answer(script, ram):
    """Where tokens know what they were evaluated behind, and somebody wants no approximation."""
    lab = ActionHarness(ExactBackend(n_seq=2, n_ctx=128, n_ubatch=16), context_shift=True, cache_ram_mib=ram)
    exact = []
    for i, (prompt, source, n, wish, n_keep, n_steps) in enumerate(script):
        if source >= 0:
            prompt = [*content(lab, source)[:n], *prompt[:9]][:120]
        one = task(i, prompt, n_predict=n, n_keep=n_keep, **wish)
        if not wish:
            exact.append(one)
        lab.engine.handle(one)
        for _ in range(n_steps):
            if lab.engine.has_work:
                lab.engine.step()
    lab.run()
    for one in exact:
        assert lab.tokens(one.id) == alone_exactly(one)


# --- the disk tier


class FatBackend(FakeBackend):
    """States of 600 KB: the second one pushes the first one out of a RAM tier of 1 MiB."""

    def save(self, seq, memory=None):
        return super().save(seq) + bytes(600_000)


def disk_lab(path, backend=None, **options) -> ActionHarness:
    return ActionHarness(
        backend or FakeBackend(n_seq=1), cache_disk=str(path), **{"cache_ram_mib": 0, **options}
    )


def states(path):
    return sorted(path.glob("*.ses1"))


def test_what_ram_has_no_room_for_goes_to_disk_and_comes_back(tmp_path):
    lab = disk_lab(tmp_path, FatBackend(n_seq=1), cache_ram_mib=1)
    for id, prompt in enumerate([LONG, OTHER, [5] * 100]):
        lab.run(task(id, prompt, n_predict=1))
    lab.sync_disk()
    (path,) = states(tmp_path)
    assert path.stat().st_size > 600_000
    assert lab.report(task(8, OTHER)).tier is Tier.RAM
    report = lab.report(task(9, [*LONG, 3]))
    assert (report.tier, report.id_slot, report.n_cached, report.n_common) == (Tier.DISK, -1, 92, 100)
    assert (report.token, report.cached_token) == (3, None)
    assert lab.tokens(9) == alone(task(9, [*LONG, 3]))


@pytest.mark.parametrize("ram", [0, 64])
def test_a_stop_brings_everything_to_disk_and_a_new_engine_finds_it(tmp_path, ram):
    lab = disk_lab(tmp_path, FakeBackend(n_seq=2), cache_ram_mib=ram)
    third = [5, 6] * 50
    for id, prompt in enumerate([LONG, OTHER, third]):
        lab.run(task(id, prompt, n_predict=1))
    lab.engine.handle(Stop())
    assert lab.engine.is_stopped
    assert len(states(tmp_path)) == 3
    for prompt in (LONG, OTHER, third):
        again = disk_lab(tmp_path)
        assert again.report(task(0, [*prompt, 3])).tier is Tier.DISK
        assert again.tokens(0) == alone(task(0, [*prompt, 3]))


def test_a_short_conversation_is_not_worth_a_file(tmp_path):
    lab = disk_lab(tmp_path)
    lab.run(task(0, LONG[:63], n_predict=1))
    lab.engine.handle(Stop())
    assert states(tmp_path) == []


def saved_on_disk(path, *prompts) -> None:
    lab = disk_lab(path)
    for id, prompt in enumerate(prompts):
        lab.run(task(id, prompt, n_predict=1))
    lab.engine.handle(Stop())


def test_a_damaged_file_is_a_miss_and_goes_away(tmp_path):
    saved_on_disk(tmp_path, LONG)
    (path,) = states(tmp_path)
    with path.open("r+b") as file:
        flip(file.fileno(), 420)
    lab = disk_lab(tmp_path)
    assert lab.report(task(0, LONG)).tier is Tier.NONE
    assert lab.tokens(0) == alone(task(0, LONG))
    assert states(tmp_path) == []


@pytest.mark.parametrize(
    "n_left",
    [0, 7, 100, pytest.param(-1, id="all but the last byte")],
)
def test_a_file_that_was_cut_off_is_a_miss_and_goes_away(tmp_path, n_left):
    saved_on_disk(tmp_path, LONG)
    (path,) = states(tmp_path)
    os.truncate(path, n_left % path.stat().st_size)
    lab = disk_lab(tmp_path)
    assert lab.report(task(0, LONG)).tier is Tier.NONE
    assert states(tmp_path) == []


def test_a_file_of_another_model_is_a_miss_and_stays(tmp_path):
    saved_on_disk(tmp_path, LONG)
    other = FakeBackend(n_seq=1)
    other.fingerprint = b"another model's."
    assert disk_lab(tmp_path, other).report(task(0, LONG)).tier is Tier.NONE
    assert disk_lab(tmp_path).report(task(0, LONG)).tier is Tier.DISK


def test_a_file_that_vanished_is_a_miss(tmp_path):
    saved_on_disk(tmp_path, LONG)
    lab = disk_lab(tmp_path)
    states(tmp_path)[0].unlink()
    assert lab.report(task(0, LONG)).tier is Tier.NONE
    assert lab.tokens(0) == alone(task(0, LONG))


def test_a_longer_conversation_replaces_its_beginning(tmp_path):
    lab = disk_lab(tmp_path)
    for id, prompt in enumerate([LONG, OTHER, [*LONG, *LONG], OTHER]):
        lab.run(task(id, prompt, n_predict=1))
        lab.sync_disk()
    assert len(states(tmp_path)) == 2
    assert lab.report(task(9, [*LONG, *LONG])).n_cached == 192


def test_erased_tokens_are_forgotten_on_disk_too(tmp_path):
    saved_on_disk(tmp_path, LONG, OTHER)
    lab = disk_lab(tmp_path)
    assert lab.report(task(0, LONG, n_predict=1)).tier is Tier.DISK
    lab.do(Verb.ERASE)
    lab.sync_disk()
    assert len(states(tmp_path)) == 1
    assert lab.report(task(1, LONG)).tier is Tier.NONE
    assert disk_lab(tmp_path).report(task(0, OTHER)).tier is Tier.DISK


@pytest.mark.parametrize("used", range(3))
def test_the_least_recently_used_file_goes_first(tmp_path, used):
    prompts = [LONG, OTHER, [5, 6] * 50]
    saved_on_disk(tmp_path, *prompts)
    n_file = max(path.stat().st_size for path in states(tmp_path))
    first = disk_lab(tmp_path)
    for path in states(tmp_path):
        age = [np.array(p, np.int32).tobytes() in path.read_bytes() for p in prompts].index(True)
        os.utime(path, (1000 + age, 1000 + age))
    assert first.report(task(0, prompts[used])).tier is Tier.DISK
    lab = disk_lab(tmp_path, cache_disk_gib=3.1 * n_file / 2**30)
    lab.run(task(0, [7, 8, 9] * 33, n_predict=1))
    lab.engine.handle(Stop())
    found = [disk_lab(tmp_path).report(task(0, p)).tier for p in (*prompts, [7, 8, 9] * 33)]
    oldest = 1 if used == 0 else 0
    assert [i for i, tier in enumerate(found) if tier is Tier.NONE] == [oldest]


def test_the_budget_is_kept_to_the_byte(tmp_path):
    saved_on_disk(tmp_path, LONG)
    n_file = states(tmp_path)[0].stat().st_size
    lab = disk_lab(tmp_path, cache_disk_gib=(2 * n_file - 1) / 2**30)
    lab.run(task(0, OTHER, n_predict=1))
    lab.engine.handle(Stop())
    assert sum(path.stat().st_size for path in states(tmp_path)) < 2 * n_file


def test_a_state_larger_than_the_budget_is_not_written(tmp_path):
    lab = disk_lab(tmp_path, cache_disk_gib=50 / 2**30)
    lab.run(task(0, LONG, n_predict=1))
    lab.engine.handle(Stop())
    assert states(tmp_path) == []


def test_a_full_disk_disturbs_nobody(tmp_path, monkeypatch, caplog):
    lab = disk_lab(tmp_path)
    write = os.write

    def full(fd, data):
        write(fd, data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        for id, prompt in enumerate([LONG, OTHER, LONG]):
            lab.run(task(id, prompt, n_predict=4))
            assert lab.tokens(id) == alone(task(id, prompt, n_predict=4))
        lab.sync_disk()
    assert list(tmp_path.iterdir()) == []
    assert "No space left on device" in caplog.text
    lab.engine.handle(Stop())
    assert disk_lab(tmp_path).report(task(0, LONG)).tier is Tier.DISK


def test_cancelled_while_its_prompt_is_read_from_disk(tmp_path, monkeypatch):
    saved_on_disk(tmp_path, LONG)
    lab = disk_lab(tmp_path)
    with held_up(monkeypatch, "read") as began:
        lab.engine.handle(task(0, LONG))
        assert began.wait(SECONDS)
        lab.engine.step()
        lab.engine.handle(task(1, OTHER, n_predict=1))
        lab.engine.step()
        assert lab.of(1, Done) or lab.of(1, Admitted), "others need not wait for the disk"
        lab.engine.handle(Cancel(0))
    lab.run()
    assert [event for event in lab.events if event.task_id == 0] == []
    assert lab.report(task(2, LONG)).tier is Tier.DISK


def test_what_a_lost_server_left_half_written_goes_away(tmp_path):
    (tmp_path / ".pending-4000000-0123456789abcdef").write_bytes(b"SES1")
    disk_lab(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_directory_is_made_for_its_owner_alone_or_the_start_fails(tmp_path):
    disk_lab(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o077 == 0
    (tmp_path / "file").touch()
    with pytest.raises(CorralError, match="--cache-disk"):
        disk_lab(tmp_path / "file")


def test_files_that_somebody_else_put_there_are_left_alone(tmp_path):
    """--cache-disk and --slot-save-path may well be one directory."""
    lab = disk_lab(tmp_path)
    lab.run(task(0, LONG, n_predict=1))
    (tmp_path / "mine.part").touch()
    with (tmp_path / "mine.ses1").open("wb") as mine:
        lab.do(Verb.SAVE, 0, mine.fileno())
    again = disk_lab(tmp_path, cache_disk_gib=1000 / 2**30)
    again.run(task(0, LONG, n_predict=1))
    again.do(Verb.ERASE)
    again.run(task(1, OTHER, n_predict=1))
    again.engine.handle(Stop())
    assert {"mine.ses1", "mine.part"} < {path.name for path in tmp_path.iterdir()}
