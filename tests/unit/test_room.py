"""Which models make room for another one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.errors import InsufficientStorage
from corral.models.eviction import Budget, Resident, check_possible, plan_room

BUDGET = Budget({"CPU": 100})


def resident(name: str, n: int, used_at: float, **more) -> Resident:
    return Resident(name, {"CPU": n}, used_at, **more)


def test_nothing_goes_if_there_is_room():
    assert plan_room({"CPU": 40}, [resident("a", 60, 1)], BUDGET) == []


def test_the_least_recently_used_goes_first_and_only_as_many_as_needed():
    three = [resident("a", 30, 3), resident("b", 30, 1), resident("c", 30, 2)]
    assert plan_room({"CPU": 20}, three, BUDGET) == ["b"]
    assert plan_room({"CPU": 60}, three, BUDGET) == ["b", "c"]


def test_a_small_one_stays_if_a_large_one_has_to_go_anyway():
    assert plan_room({"CPU": 90}, [resident("small", 5, 1), resident("large", 80, 2)], BUDGET) == ["large"]


def test_busy_and_pinned_ones_stay():
    busy = [resident("a", 60, 1, is_busy=True)]
    assert plan_room({"CPU": 60}, busy, BUDGET) is None
    assert plan_room({"CPU": 60}, busy, BUDGET, also_busy=True) == ["a"]
    assert plan_room({"CPU": 60}, [resident("a", 60, 1, is_pinned=True)], BUDGET, also_busy=True) is None


def test_a_rival_goes_though_there_is_room_and_is_waited_for_if_busy():
    rival, other = resident("a", 10, 2, is_rival=True), resident("b", 10, 1)
    assert plan_room({"CPU": 10}, [rival, other], BUDGET) == ["a"]
    assert plan_room({"CPU": 90}, [rival, other], BUDGET) == ["a"]
    busy = resident("a", 10, 2, is_rival=True, is_busy=True)
    assert plan_room({"CPU": 10}, [busy, other], BUDGET) is None
    assert plan_room({"CPU": 10}, [busy, other], BUDGET, also_busy=True) == ["a"]


def test_the_number_of_models_is_a_limit_too():
    two = [resident("a", 1, 2), resident("b", 1, 1)]
    assert plan_room({"CPU": 1}, two, Budget({}, 2)) == ["b"]
    assert plan_room({"CPU": 1}, two, Budget({}, 0)) == []


def test_each_device_counts():
    on_gpu = Resident("a", {"CPU": 1, "CUDA0": 50}, 1)
    assert plan_room({"CUDA0": 60}, [on_gpu], Budget({"CPU": 100, "CUDA0": 100})) == ["a"]
    assert plan_room({"CUDA1": 60}, [on_gpu], Budget({"CPU": 100, "CUDA0": 100})) == []


def test_what_can_never_fit_is_refused_with_the_numbers():
    check_possible("x", {"CPU": 100}, [], BUDGET)
    with pytest.raises(InsufficientStorage) as refusal:
        check_possible("x", {"CPU": 60}, [resident("a", 50, 1, is_pinned=True)], BUDGET)
    assert refusal.value.details == {"n_needed": 60, "n_limit": 100}
    with pytest.raises(InsufficientStorage):
        check_possible("x", {}, [resident("a", 0, 1, is_pinned=True)], Budget({}, 1))


@given(
    st.integers(0, 120),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9), *[st.booleans()] * 3), max_size=6),
    st.integers(0, 4),
)
def test_plans_hold(n, rows, n_models):
    residents = [
        resident(str(i), size, used_at, is_busy=busy, is_pinned=pinned and not rival, is_rival=rival)
        for i, (size, used_at, busy, pinned, rival) in enumerate(rows)
    ]
    budget = Budget({"CPU": 100}, n_models)
    victims = plan_room({"CPU": n}, residents, budget)
    stuck = [each.needs for each in residents if each.is_busy or each.is_pinned]
    is_blocked = any(each.is_rival and each.is_busy for each in residents)
    assert (victims is not None) == (budget.holds([{"CPU": n}, *stuck]) and not is_blocked)
    gone = [each for each in residents if each.name in (victims or ())]
    assert not any(each.is_busy or each.is_pinned for each in gone)
    if victims is not None:
        assert all(each in gone for each in residents if each.is_rival)
        kept = [each.needs for each in residents if each not in gone]
        assert budget.holds([{"CPU": n}, *kept])
        stayers = [each for each in gone if not each.is_rival]
        assert not any(budget.holds([{"CPU": n}, *kept, each.needs]) for each in stayers)
