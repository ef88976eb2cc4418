"""How many tokens to draft: never more than pays, never for ever none."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.core.params import MAX_AHEAD
from corral.engine.cost import CostModel, Load
from corral.engine.draft_length import DraftLength, plan_length
from tests.tools.examples import examples

chances = st.floats(0, 1)
times = st.floats(0.01, 1e4)


def free(n: int) -> float:
    """As many tokens at once as one likes, in a millisecond."""
    return 1.0


def linear(n: int) -> float:
    return float(n)


@given(chances, st.integers(0, 9), times, st.lists(times, min_size=10, max_size=10), st.floats(0, 100))
@examples(200)
def test_the_best_length_is_chosen(acceptance, n_max, token_ms, ahead, draft_ms):
    n = plan_length(acceptance, n_max, token_ms, lambda n: ahead[n - 1], draft_ms)
    speeds = [1.05 / token_ms]
    for length in range(1, n_max + 1):
        expected = sum(acceptance**i for i in range(length + 1))
        speeds.append(expected / (ahead[length] + length * draft_ms))
    assert 0 <= n <= n_max
    assert speeds[n] >= max(speeds) * (1 - 1e-9)


@given(chances, st.integers(0, 64))
def test_nothing_where_every_token_costs_as_much_as_alone(acceptance, n_max):
    assert plan_length(acceptance, n_max, 1.0, linear) == 0


@given(st.integers(0, 64))
def test_nothing_where_drafts_are_always_wrong(n_max):
    assert plan_length(0.0, n_max, 1.0, free) == 0


def test_everything_where_it_costs_nothing():
    assert plan_length(1.0, 16, 1.0, free) == 16
    assert plan_length(0.5, 16, 1.0, free) == 16


def test_nothing_before_anything_was_measured():
    assert plan_length(1.0, 16, 0.0, lambda n: 0.0) == 0
    assert plan_length(1.0, 16, 0.0, CostModel().ahead_ms) == 0


def test_the_more_is_right_the_longer():
    def ahead_ms(n: int) -> float:
        return 1 + 0.2 * n

    lengths = [plan_length(i / 20, 16, 1.0, ahead_ms) for i in range(21)]
    assert lengths == sorted(lengths)
    assert lengths[0] == 0
    assert lengths[-1] == 16
    assert len(set(lengths)) > 4


def test_drafting_has_its_price():
    assert plan_length(0.8, 16, 1.0, free, draft_ms=0.05) > plan_length(0.8, 16, 1.0, free, draft_ms=0.2) > 0
    assert plan_length(0.8, 16, 1.0, free, draft_ms=1.0) == 0


def test_it_must_be_worth_the_trouble():
    assert plan_length(1.0, 1, 1.0, lambda n: 2 / 1.04) == 0
    assert plan_length(1.0, 1, 1.0, lambda n: 2 / 1.06) == 1


# What a request remembers of its drafts.


def after(*drafts: tuple[int, int]) -> DraftLength:
    pace = DraftLength()
    for n_drafted, n_accepted in drafts:
        pace.use("kind")
        pace.observe(n_drafted, n_accepted)
    return pace


@given(st.lists(st.tuples(st.integers(1, 16), st.integers(0, 16)), max_size=30), chances, st.integers(0, 300))
@settings(deadline=None)
def test_a_share_is_a_share(drafts, assumed, n_skipped):
    pace = after(*((n, min(n, right)) for n, right in drafts))
    for _ in range(n_skipped):
        pace.skip("kind")
    assert 0 <= pace.acceptance("kind", assumed) <= 1


def test_at_first_it_is_as_assumed():
    assert DraftLength().acceptance("kind", 0.6) == pytest.approx(0.6)
    assert after((4, 0)).acceptance("another kind", 0.6) == pytest.approx(0.6)


def test_it_learns_from_luck_and_bad_luck():
    assert after((8, 8)).acceptance("kind", 0.6) > 0.8
    assert after((8, 0)).acceptance("kind", 0.6) < 0.5
    assert after(*[(8, 0)] * 20).acceptance("kind", 0.9) < 0.3
    assert after(*[(8, 8)] * 20).acceptance("kind", 0.1) > 0.9


def test_it_comes_to_know_how_often_a_token_is_right():
    """Drafts that go wrong behind every third token: three of four are right."""
    assert after(*[(8, 3)] * 50).acceptance("kind", 0.5) == pytest.approx(0.75, abs=0.05)


def test_what_was_long_ago_counts_less():
    then_bad = after(*[(8, 8)] * 10, *[(8, 0)] * 30)
    assert then_bad.acceptance("kind", 0.6) < 0.3
    then_good = after(*[(8, 0)] * 30, *[(8, 8)] * 3)
    assert then_good.acceptance("kind", 0.6) > 0.6


def test_what_did_not_pay_is_tried_again_some_time():
    pace = after(*[(16, 0)] * 30)
    assert plan_length(pace.acceptance("kind", 0.6), 16, 1.0, lambda n: 0.7 + 0.3 * n) == 0
    n_skipped = 0
    while not plan_length(pace.acceptance("kind", 0.6), 16, 1.0, lambda n: 0.7 + 0.3 * n):
        pace.skip("kind")
        n_skipped += 1
        assert n_skipped < 500
    assert n_skipped > 20


# What evaluating costs.


def test_costs_lie_between_those_that_were_measured():
    cost = CostModel()
    cost.observe(Load(n_generating=1), 10.0)
    assert cost.ahead_ms(1) == cost.ahead_ms(5) == cost.ahead_ms(17) == 10.0
    cost.observe(Load(n_ahead=9), 30.0)
    assert [cost.ahead_ms(n) for n in (1, 3, 5, 9, 17)] == [10.0, 15.0, 20.0, 30.0, 30.0]
    cost.observe(Load(n_ahead=3), 12.0)
    assert [cost.ahead_ms(n) for n in (1, 2, 3, 6, 9)] == [10.0, 11.0, 12.0, 21.0, 30.0]
    assert cost.predict_ms(Load(n_ahead=6)) == 21.0


def test_costs_of_drafts_are_moving_averages_of_their_own():
    cost = CostModel()
    cost.observe(Load(n_generating=1), 10.0)
    for _ in range(40):
        cost.observe(Load(n_ahead=5), 20.0)
    cost.observe(Load(n_ahead=5), 120.0)
    assert 20 < cost.ahead_ms(5) < 120
    assert cost.decode_ms == 10.0
    assert cost.n_tokens_in(100) == 10, "they say nothing about prompts"


@given(st.dictionaries(st.integers(2, 17), times, max_size=5), times, st.integers(1, MAX_AHEAD))
def test_a_cost_is_never_out_of_bounds(measured, token_ms, n):
    cost = CostModel()
    cost.observe(Load(n_generating=1), token_ms)
    for n_ahead, ms in measured.items():
        cost.observe(Load(n_ahead=n_ahead), ms)
    known = [token_ms, *measured.values()]
    assert min(known) <= cost.ahead_ms(n) * (1 + 1e-9)
    assert cost.ahead_ms(n) <= max(known) * (1 + 1e-9)
