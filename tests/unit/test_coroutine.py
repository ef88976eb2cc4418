"""Coroutines: who goes on when, and that every one of them comes to an end exactly once."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.errors import Conflict, CorralError, InvalidRequest
from corral.core.result import Admitted, Failed, SlotReport
from corral.engine.coroutine import Coroutines, Reservations, WaitForSlots
from corral.engine.request import Request
from tests.tools.failure import status_of
from tests.unit.engine_harness import EngineHarness, task
from tests.unit.fake import FakeBackend


class Room:
    """Coroutines that keep what they get, and when they are closed."""

    def __init__(self) -> None:
        self.n_wakes = 0
        self.jobs = Coroutines(self._wake)
        self.log: list[tuple[int, object]] = []
        self.closed: list[int] = []
        self._order = 0

    def _wake(self) -> None:
        self.n_wakes += 1

    def start(self, id, *waits, problem=None):
        self._order += 1
        return self.jobs.start(id, self._order, self._steps(id, waits, problem))

    def run(self, *idle):
        """As many rounds as somebody is answered in."""
        events = []
        while new := self.jobs.run(idle):
            events += new
        return events

    def _steps(self, id, waits, problem):
        try:
            for wait in waits:
                self.log.append((id, (yield wait)))
            if problem is not None:
                raise problem
            return answer(id)
        finally:
            self.closed.append(id)


@pytest.fixture
def room():
    return Room()


def answer(id):
    return SlotReport(task_id=id, id_slot=0, n_tokens=id)


def turn(*slots):
    return WaitForSlots(frozenset(slots))


def ready(value):
    future = Future()
    future.set_result(value)
    return future


def test_what_needs_nothing_is_answered_at_once(room):
    assert room.start(7) == [answer(7)]
    assert not room.jobs
    assert room.closed == [7]


def test_an_answer_of_nothing_is_no_event(room):
    def silent():
        yield turn(0)

    assert room.jobs.start(1, 1, silent()) == []
    assert room.jobs.run([0]) == []
    assert not room.jobs


def test_a_job_goes_on_with_what_another_thread_made(room):
    future = Future()
    assert room.start(1, future) == []
    assert room.jobs.run([0, 1]) == []
    assert room.jobs.are_waiting([])
    future.set_result("made")
    assert not room.jobs.are_waiting([])
    assert room.jobs.run([]) == [answer(1)]
    assert room.log == [(1, "made")]


def test_the_engine_is_woken_when_a_future_is_done_and_not_before(room):
    first, second = Future(), Future()
    room.start(1, first, second)
    assert room.n_wakes == 0
    first.set_result(None)
    assert room.n_wakes == 1
    room.jobs.run([])
    assert room.n_wakes == 1
    second.set_exception(InvalidRequest("no"))
    assert room.n_wakes == 2


def test_the_engine_is_woken_for_a_future_that_was_done_before_anybody_waited(room):
    room.start(1, ready(3))
    assert room.n_wakes == 1
    assert room.jobs.run([]) == [answer(1)]


def test_a_turn_comes_when_its_thread_is_done_and_is_held_until_then(room):
    future = Future()
    room.start(1, WaitForSlots(frozenset([0]), future))
    room.start(2, turn(0))
    room.start(3, turn(1))
    assert room.jobs.reserved == {0: 1, 1: 3}
    assert [room.jobs.reservations(idle).due for idle in ([0, 1], [1, 2], [])] == [{0, 1}, {1}, set()]
    assert room.jobs.run([0, 1]) == [answer(3)]
    future.set_result("made")
    assert room.n_wakes == 1
    assert room.jobs.run([1]) == []
    assert room.run(0, 1) == [answer(1), answer(2)]


def test_a_desk_is_for_one_at_a_time(room):
    future = Future()
    room.start(1, turn(0), WaitForSlots(frozenset(), future, exclusive=0))
    room.start(2, WaitForSlots(frozenset([0]), exclusive=0))
    room.start(3, WaitForSlots(frozenset([1]), exclusive=1))
    room.jobs.run([0])
    assert room.run(0, 1) == [answer(3)]
    assert room.jobs.reserved == {0: 2}
    future.set_result(None)
    assert room.run(0, 1) == [answer(1), answer(2)]


def test_an_error_of_a_thread_is_left_to_the_job_whose_turn_it_is(room):
    failed = Future()
    failed.set_exception(InvalidRequest("bad"))
    room.start(1, WaitForSlots(frozenset([0]), failed))
    assert room.jobs.run([0]) == [answer(1)]


def test_who_can_go_on_is_not_waiting_and_who_is_behind_somebody_waits_too(room):
    future = Future()
    room.start(1, WaitForSlots(frozenset([0]), future))
    room.start(2, turn(0))
    assert room.jobs.are_waiting([0, 1])
    room.start(3, turn(1))
    assert room.jobs.are_waiting([0])
    assert not room.jobs.are_waiting([0, 1])
    assert room.run(1) == [answer(3)]
    future.set_result(None)
    assert not room.jobs.are_waiting([0])


def test_an_error_of_a_future_is_raised_in_the_job(room):
    caught = []

    def careful():
        failed = Future()
        failed.set_exception(InvalidRequest("bad", field="x"))
        try:
            yield failed
        except CorralError as error:
            caught.append(error.message)
        return answer(1)

    room.jobs.start(1, 1, careful())
    assert room.jobs.run([]) == [answer(1)]
    assert caught == ["Field 'x': bad"]


@pytest.mark.parametrize("problem", [Conflict("busy"), InvalidRequest("bad", field="x")])
@pytest.mark.parametrize("place", ["start", "turn", "future"])
def test_an_error_is_the_answer_wherever_it_happens(room, problem, place):
    waits = {"start": [], "turn": [turn(0)], "future": [Future()]}[place]
    events = room.start(5, *waits, problem=None if place == "future" else problem)
    if place == "future":
        waits[0].set_exception(problem)
    assert events + room.jobs.run([0]) == [Failed(5, problem.info())]
    assert not room.jobs
    assert room.closed == [5]


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_failing_job_does_not_disturb_the_others(room, capsys, in_thread):
    failing = Future()
    for id in (1, 3):
        room.start(id, turn(id))
    room.start(2, failing if in_thread else turn(2), problem=ZeroDivisionError("secret"))
    failing.set_exception(ZeroDivisionError("secret"))
    first, third, second = room.jobs.run([1, 2, 3])
    assert (first, third) == (answer(1), answer(3))
    assert (second.task_id, status_of(second)) == (2, 500)
    assert "ZeroDivisionError" in second.error.message
    assert "secret" not in second.error.message
    assert "secret" in capsys.readouterr().err
    assert not room.jobs


def test_turns_come_in_the_order_of_arrival(room):
    for id in (3, 1, 2):
        room.start(id, turn(0))
    assert room.jobs.run([1, 2]) == []
    assert room.run(0) == [answer(3), answer(1), answer(2)]


def test_who_waits_for_several_slots_is_not_overtaken_on_any_of_them(room):
    room.start(1, turn(0, 1))
    room.start(2, turn(0))
    room.start(3, turn(2))
    assert room.jobs.run([0, 2]) == [answer(3)]
    assert room.jobs.run([0]) == []
    assert room.run(0, 1) == [answer(1), answer(2)]


def test_a_slot_is_reserved_for_the_first_who_waits_for_it(room):
    room.start(1, Future())
    room.start(2, turn(0, 1))
    room.start(3, turn(1, 2))
    assert room.jobs.reserved == {0: 2, 1: 2, 2: 3}
    room.jobs.cancel(2)
    assert room.jobs.reserved == {1: 3, 2: 3}
    room.jobs.run([1, 2])
    assert room.jobs.reserved == {}


@pytest.mark.parametrize(("order", "gets_it"), [(4, True), (5, True), (6, False)])
@pytest.mark.parametrize("pinned", [0, -1])
def test_reserved_slots_hold_back_later_requests_only(order, gets_it, pinned):
    scheduler = EngineHarness(FakeBackend(n_seq=2)).engine._scheduler
    scheduler.add(Request(task(0, [1, 2, 3], id_slot=pinned), order))
    events = scheduler.admit(0.0, Reservations({0: 5, 1: 3}))
    assert [event.id_slot for event in events if isinstance(event, Admitted)] == [0] * gets_it
    assert len(scheduler.admit(0.0)) == (not gets_it)


def test_cancelled_while_it_waits_for_a_turn(room):
    room.start(1, turn(0, 1))
    room.start(2, turn(0))
    room.jobs.cancel(1)
    assert room.closed == [1]
    assert room.jobs.run([0, 1]) == [answer(2)]


@pytest.mark.parametrize("for_a_turn", [False, True])
def test_cancelled_while_a_thread_works_for_it(room, for_a_turn):
    """What the thread uses may be released only when it is done, and is then, without another step."""
    go, began = threading.Event(), threading.Event()

    def work():
        began.set()
        assert go.wait(10)

    with ThreadPoolExecutor(1) as pool:
        running, queued = pool.submit(work), pool.submit(lambda: None)
        room.start(1, WaitForSlots(frozenset([0]), running) if for_a_turn else running)
        room.start(2, WaitForSlots(frozenset([0]), queued) if for_a_turn else queued)
        assert began.wait(10)
        room.jobs.cancel(1)
        room.jobs.cancel(2)
        assert room.closed == [2], "one is in the middle of its work, the other one will never begin"
        assert not room.jobs
        go.set()
    assert room.closed == [2, 1]
    assert room.jobs.run([0]) == []
    assert room.log == []
    assert queued.cancelled()


def test_cancelled_when_its_thread_is_done_already(room):
    room.start(1, ready("unused"))
    room.jobs.cancel(1)
    assert room.closed == [1]
    assert room.jobs.run([0]) == []
    assert room.log == []


def test_a_future_that_somebody_else_cancelled_is_an_error(room, capsys):
    future = Future()
    room.start(1, future)
    assert future.cancel()
    (failed,) = room.jobs.run([])
    assert status_of(failed) == 500
    assert "CancelledError" in capsys.readouterr().err


def test_to_cancel_somebody_unknown_changes_nothing(room):
    room.start(1, turn(0))
    room.jobs.cancel(2)
    assert room.jobs.run([0]) == [answer(1)]


waits = st.tuples(
    st.frozensets(st.integers(0, 3), max_size=3), st.booleans(), st.sampled_from([None, None, 0, 1])
)
operations = st.lists(
    st.tuples(st.just("start"), st.lists(waits, max_size=3))
    | st.tuples(st.just("run"), st.frozensets(st.integers(0, 3)))
    | st.tuples(st.just("finish"), st.integers(0, 9))
    | st.tuples(st.just("cancel"), st.integers(0, 9)),
    max_size=30,
)


@given(operations)
def test_nobody_is_overtaken_and_everybody_ends_once(script):
    room, futures, ended, cancelled = Room(), [], [], set()
    started = 0
    for what, value in script:
        if what == "start":
            work = [Future() if is_after else None for _, is_after, _ in value]
            waits = [
                future if future and not slots and desk is None else WaitForSlots(slots, future, desk)
                for (slots, _, desk), future in zip(value, work, strict=True)
            ]
            futures += [future for future in work if future]
            ended += room.start(started, *waits)
            started += 1
        elif what == "finish" and value < len(futures) and not futures[value].done():
            futures[value].set_result(value)
        elif what == "cancel" and value < started and value not in {event.task_id for event in ended}:
            room.jobs.cancel(value)
            cancelled.add(value)
        elif what == "run":
            ended += _run_fairly(room, value)
    for future in futures:
        if not future.done():
            future.set_result(None)
    for _ in range(3 * started):
        ended += room.jobs.run(range(4))
    assert not room.jobs, "each waits three times at most"
    assert sorted([event.task_id for event in ended] + list(cancelled)) == list(range(started))
    assert sorted(room.closed) == list(range(started))


def _run_fairly(room: Room, idle: frozenset[int]) -> list:
    """Who goes on has all it waits for, and overtakes nobody; who shares nothing with those before does."""
    before = [(job.id, job.waits_for) for job in room.jobs._pending]
    n_log = len(room.log)
    events = room.jobs.run(idle)
    went_on = [id for id, _ in room.log[n_log:]]
    assert len(went_on) == len(set(went_on))
    wanted: set[object] = set()
    still_wanted: set[object] = set()
    for id, wait in before:
        turn = wait if isinstance(wait, WaitForSlots) else WaitForSlots(frozenset(), wait)
        wants = {*turn.slots} if turn.exclusive is None else {*turn.slots, f"desk {turn.exclusive}"}
        is_ready = turn.slots <= idle and (turn.after is None or turn.after.done())
        if id in went_on:
            assert is_ready
            assert not wants & still_wanted
        else:
            assert not is_ready or wants & wanted
            still_wanted |= wants
        wanted |= wants
    return events
