"""Models come and go in any order, and every request ends."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from corral.core.errors import CorralError, InsufficientStorage
from corral.models.eviction import Budget
from corral.models.residency import Phase, Residency, Stay

LIMIT = 100
NEEDS = (40, 50, 60, 30, 120)  # of the models; the last one never fits
ENGINES = (Phase.LOADING, Phase.UP, Phase.LEAVING)


class Model:
    """The `Effects` of a model: what was begun and has not ended."""

    def __init__(self, name: str, n_bytes: int, **options) -> None:
        self.stay = Stay(name, self, **options)
        self.n_bytes = n_bytes
        self.is_working = False
        self.is_planning = self.is_waiting = self.is_loading = self.is_leaving = False
        self.is_refused: CorralError | None = None

    @property
    def begun(self) -> list[bool]:
        return [self.is_planning, self.is_waiting, self.is_loading, self.is_leaving]

    def begin_load(self) -> None:
        assert not any(self.begun)
        self.is_planning = True

    def grant(self) -> None:
        assert self.is_waiting
        self.is_waiting, self.is_loading = False, True

    def refuse(self, error: CorralError) -> None:
        assert self.is_waiting
        self.is_waiting, self.is_planning, self.is_refused = False, True, error

    def begin_unload(self, was_idle: bool) -> None:
        assert not any((self.is_working, self.stay.inside, self.is_leaving, self.is_loading))
        self.is_planning = self.is_waiting = False
        self.is_leaving = True

    def on_phase(self) -> None: ...


class Request:
    """A `Ticket`."""

    def __init__(self, stay: Stay) -> None:
        self.stay = stay
        self.is_in = self.is_refused = self.has_left = False

    @property
    def is_over(self) -> bool:
        return self.is_in or self.is_refused or self.has_left

    def let_in(self) -> None:
        assert not self.is_over
        assert self.stay.phase is Phase.UP
        self.is_in = True

    def refuse(self, error: CorralError) -> None:
        assert not self.is_over
        self.is_refused = True


class Coming(RuleBasedStateMachine):
    """Any event at any time that is possible; `teardown` then lets everything end."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.requests: list[Request] = []
        self.models: list[Model] = []

    @initialize(
        n=st.integers(2, 5),
        n_most=st.sampled_from((0, 0, 1, 2)),
        pinned=st.integers(0, 9),
        rivals=st.sets(st.integers(0, 4), max_size=3),
    )
    def begin(self, n: int, n_most: int, pinned: int, rivals: set[int]) -> None:
        self.residency = Residency(lambda: Budget({"CPU": LIMIT}, n_most), clock=lambda: self.now)
        for i, n_bytes in enumerate(NEEDS[-n:]):
            groups = ("rivals",) if i in rivals else ()
            self.models.append(Model(f"model {i}", n_bytes, is_pinned=i == pinned, groups=groups))
            self.residency.add(self.models[-1].stay)

    def some(self, data: st.DataObject, **wanted) -> Model | None:
        found = [each for each in self.models if all(getattr(each, key) == wanted[key] for key in wanted)]
        return data.draw(st.sampled_from(found)) if found else None

    @rule(data=st.data())
    def enter(self, data: st.DataObject) -> None:
        model = data.draw(st.sampled_from([each for each in self.models if not each.stay.is_retired]))
        self.requests.append(Request(model.stay))
        self.residency.enter(model.stay, self.requests[-1])

    @rule(data=st.data())
    @precondition(lambda self: any(not each.has_left for each in self.requests))
    def leave(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from([each for each in self.requests if not each.has_left])))

    def end(self, request: Request) -> None:
        request.has_left = True
        self.residency.leave(request.stay, request)

    @rule(data=st.data())
    def know_needs(self, data: st.DataObject) -> None:
        if model := self.some(data, is_planning=True):
            self.plan(model)

    def plan(self, model: Model) -> None:
        model.is_planning, model.is_waiting = False, True
        if error := model.is_refused:
            model.is_waiting, model.is_refused = False, None
            self.residency.on_failed(model.stay, error)
            return
        try:
            self.residency.plan(model.stay, {"CPU": model.n_bytes})
        except InsufficientStorage as error:
            model.is_waiting = False
            self.residency.on_failed(model.stay, error)

    @rule(data=st.data())
    def die_while_waiting(self, data: st.DataObject) -> None:
        if model := self.some(data, is_waiting=True):
            model.is_waiting, model.is_planning = False, True
            self.residency.forget_plan(model.stay)

    @rule(data=st.data())
    def die_while_loading_and_try_again(self, data: st.DataObject) -> None:
        if model := self.some(data, is_loading=True):
            model.is_loading = False
            self.plan(model)

    @rule(data=st.data())
    def finish_load(self, data: st.DataObject) -> None:
        if model := self.some(data, is_loading=True):
            self.load(model)

    def load(self, model: Model) -> None:
        model.is_loading = False
        self.residency.on_up(model.stay)

    @rule(data=st.data())
    def fail_to_load(self, data: st.DataObject) -> None:
        model = data.draw(st.sampled_from(self.models))
        if any(model.begun) and not model.is_leaving:
            model.is_planning = model.is_waiting = model.is_loading = False
            self.residency.on_failed(model.stay, CorralError("cannot be loaded"))

    @rule(data=st.data())
    def finish_unload(self, data: st.DataObject) -> None:
        if model := self.some(data, is_leaving=True):
            self.go(model)

    def go(self, model: Model) -> None:
        model.is_leaving = False
        self.residency.on_gone(model.stay)

    @rule(data=st.data())
    def crash_for_good(self, data: st.DataObject) -> None:
        model = data.draw(st.sampled_from(self.models))
        if model.stay.phase is Phase.UP:
            model.is_working = False
            self.residency.on_failed(model.stay, CorralError("the engine is down"))

    @rule(data=st.data(), is_working=st.booleans())
    def work(self, data: st.DataObject, is_working: bool) -> None:
        """Nobody tells when the work in the background ends."""
        model = data.draw(st.sampled_from(self.models))
        model.is_working = is_working and model.stay.phase is Phase.UP

    @rule(data=st.data())
    def be_idle(self, data: st.DataObject) -> None:
        self.residency.on_idle(data.draw(st.sampled_from(self.models)).stay)

    @rule(data=st.data())
    def unload(self, data: st.DataObject) -> None:
        self.residency.send_out(data.draw(st.sampled_from(self.models)).stay)

    @rule(data=st.data())
    @precondition(lambda self: sum(not each.stay.is_retired for each in self.models) > 1)
    def retire(self, data: st.DataObject) -> None:
        self.residency.retire(data.draw(st.sampled_from(self.models)).stay)

    @rule(seconds=st.sampled_from((0.5, 10.0)))
    def timer(self, seconds: float) -> None:
        self.now += seconds
        self.residency.tick()

    @invariant()
    def memory_is_never_exceeded(self) -> None:
        held = [each.stay for each in self.models if each.stay.is_granted]
        assert sum(stay.needs["CPU"] for stay in held) <= LIMIT
        most = self.residency._budget().n_models if self.models else 0
        assert not most or len(held) <= most
        assert all(stay.phase in ENGINES for stay in held)

    @invariant()
    def every_request_has_one_owner(self) -> None:
        for each in self.requests:
            is_waiting, is_inside = each in each.stay.waiting, each in each.stay.inside
            assert is_inside == (each.is_in and not each.has_left)
            assert is_waiting == (not each.is_in and not each.is_refused and not each.has_left)

    @invariant()
    def a_request_waits_only_for_something_that_has_begun(self) -> None:
        for model in self.models:
            stay = model.stay
            assert sum(model.begun) == (stay.phase not in (Phase.OUT, Phase.UP))
            is_kept = stay.phase is Phase.UP and not self.residency.is_open(stay)
            assert not stay.waiting or any(model.begun) or (is_kept and stay.is_busy)

    def teardown(self) -> None:
        for _ in range(100):
            if all(each.has_left for each in self.requests):
                break
            for model in self.models:
                model.is_working = False
                if model.is_planning:
                    self.plan(model)
                if model.is_loading:
                    self.load(model)
                if model.is_leaving:
                    self.go(model)
            for request in self.requests:
                if not request.has_left and (request.is_in or request.is_refused):
                    self.end(request)
            self.timer(10.0)
        assert all(each.has_left for each in self.requests)


TestComing = Coming.TestCase


def make(*names: str, n_most: int = 1) -> tuple[Residency, list[Model]]:
    residency = Residency(lambda: Budget({"CPU": LIMIT}, n_most), clock=lambda: 0.0)
    models = [Model(name, 10) for name in names]
    for model in models:
        residency.add(model.stay)
    return residency, models


def bring_up(residency: Residency, model: Model) -> Request:
    request = Request(model.stay)
    residency.enter(model.stay, request)
    model.is_planning, model.is_waiting = False, True
    residency.plan(model.stay, {"CPU": model.n_bytes})
    model.is_loading = False
    residency.on_up(model.stay)
    assert request.is_in
    return request


def test_a_request_that_comes_while_its_model_makes_room_waits_for_the_next_load():
    residency, (old, new) = make("old", "new")
    residency.leave(old.stay, bring_up(residency, old))
    other = Request(new.stay)
    residency.enter(new.stay, other)
    new.is_planning, new.is_waiting = False, True
    residency.plan(new.stay, {"CPU": 10})
    assert old.is_leaving, "decided and begun in one step"
    late = Request(old.stay)
    residency.enter(old.stay, late)
    assert not late.is_in
    old.is_leaving = False
    residency.on_gone(old.stay)
    assert old.is_planning, "it comes back for the request"
    assert new.is_loading
    new.is_loading = False
    residency.on_up(new.stay)
    old.is_planning, old.is_waiting = False, True
    residency.plan(old.stay, {"CPU": 10})
    assert (other.is_in, late.is_in, new.is_leaving) == (True, False, False)
    residency.leave(new.stay, other)
    assert new.is_leaving


def test_nobody_makes_room_for_a_model_that_no_request_wants_any_more():
    residency, (busy, other) = make("busy", "other")
    bring_up(residency, busy)
    request = Request(other.stay)
    residency.enter(other.stay, request)
    other.is_planning, other.is_waiting = False, True
    residency.plan(other.stay, {"CPU": 10})
    assert other.is_waiting
    residency.leave(other.stay, request)
    assert (other.is_leaving, busy.stay.phase) == (True, Phase.UP)


@pytest.mark.parametrize("is_working", [False, True])
def test_an_idle_model_leaves_unless_it_has_work(is_working):
    residency, (model,) = make("model")
    request = bring_up(residency, model)
    residency.on_idle(model.stay)
    assert model.stay.phase is Phase.UP, "a request is inside"
    residency.leave(model.stay, request)
    model.is_working = is_working
    residency.on_idle(model.stay)
    assert model.is_leaving is not is_working


def test_all_that_wait_are_refused_at_the_end():
    residency, (busy, other) = make("busy", "other")
    bring_up(residency, busy)
    request, late = Request(other.stay), Request(other.stay)
    residency.enter(other.stay, request)
    residency.close()
    residency.enter(other.stay, late)
    assert (request.is_refused, late.is_refused) == (True, True)
