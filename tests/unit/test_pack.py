"""Which inputs are embedded together, and what becomes of those that were cut."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.pooling import Pooling
from corral.engine.pack import Input, merge, n_up_to, plan_limits, plan_pack

sizes = st.lists(st.integers(1, 60), max_size=20)


def inputs_of(ns):
    return sorted(Input(n, i) for i, n in enumerate(ns))


orders = st.lists(sizes.map(inputs_of), min_size=1, max_size=6).filter(lambda orders: orders[0])
n_tokens = st.integers(1, 100)
n_seqs = st.integers(1, 12)


def n_in(plan):
    return sum(input.n for _, input in plan)


def left_of(orders, plan):
    """What waits behind the batch."""
    taken = set(plan)
    return [[input for input in inputs if (i, input) not in taken] for i, inputs in enumerate(orders)]


@given(sizes.map(inputs_of), st.integers(0, 70))
def test_all_that_are_not_longer_are_counted(inputs, n):
    assert n_up_to(n, inputs) == sum(input.n <= n for input in inputs)


@given(orders, n_tokens, n_seqs)
def test_a_batch_never_holds_too_much(orders, n, n_seq):
    plan = plan_pack(orders, n, n_seq)
    assert 1 <= len(plan) <= n_seq
    assert n_in(plan) <= n or len(plan) == 1


@given(orders, n_tokens, n_seqs)
def test_inputs_are_taken_once_and_from_their_own_order(orders, n, n_seq):
    plan = plan_pack(orders, n, n_seq)
    assert len(set(plan)) == len(plan)
    assert all(input in orders[i] for i, input in plan)


@given(orders, n_tokens, n_seqs)
def test_planning_changes_nothing(orders, n, n_seq):
    before = [list(inputs) for inputs in orders]
    plan_pack(orders, n, n_seq)
    assert orders == before


@given(orders, n_tokens, n_seqs)
def test_the_longest_of_the_first_order_begins(orders, n, n_seq):
    assert plan_pack(orders, n, n_seq)[0] == (0, orders[0][-1])


@given(orders, n_tokens, n_seqs)
def test_nothing_is_left_out_that_would_fit(orders, n, n_seq):
    plan = plan_pack(orders, n, n_seq)
    room = n - n_in(plan)
    waiting = [input.n for inputs in left_of(orders, plan) for input in inputs]
    assert len(plan) == n_seq or all(size > room for size in waiting)


@given(orders, n_tokens, n_seqs)
def test_an_order_takes_the_longest_there_still_is_room_for(orders, n, n_seq):
    left = [list(inputs) for inputs in orders]
    for k, (i, input) in enumerate(plan_pack(orders, n, n_seq)):
        assert k == 0 or (input.n <= n and input == left[i][n_up_to(n, left[i]) - 1])
        left[i].remove(input)
        n -= input.n


@given(orders, n_tokens, n_seqs)
def test_nobody_is_two_inputs_ahead_of_one_that_has_more_to_give(orders, n, n_seq):
    plan = plan_pack(orders, n, n_seq)
    room = n - n_in(plan)
    counts = Counter(i for i, _ in plan)
    for i, inputs in enumerate(left_of(orders, plan)):
        if n_up_to(room, inputs):
            assert max(counts.values()) <= counts[i] + 1


@given(st.integers(1, 6), st.integers(1, 10), st.integers(1, 12))
def test_equal_orders_get_equal_shares(n_orders, n_each, n_seq):
    counts = Counter(i for i, _ in plan_pack([inputs_of([4] * n_each)] * n_orders, 40, n_seq))
    shares = [counts[i] for i in range(n_orders)]
    assert max(shares) - min(shares) <= 1
    assert sum(shares) == min(n_orders * n_each, n_seq, 10)


@given(orders, n_tokens, n_seqs)
def test_taking_turns_empties_everything(orders, n, n_seq):
    waiting = [(i, inputs) for i, inputs in enumerate(orders) if inputs]
    n_orders, done, n_batches = len(waiting), [], 0
    while waiting:
        plan = plan_pack([inputs for _, inputs in waiting], n, n_seq)
        done += [(waiting[i][0], input) for i, input in plan]
        left = left_of([inputs for _, inputs in waiting], plan)
        waiting = [(i, inputs) for (i, _), inputs in zip(waiting, left, strict=True)]
        waiting = [(i, inputs) for i, inputs in [*waiting[1:], waiting[0]] if inputs]
        n_batches += 1
        if n_batches == n_orders:
            assert {i for i, _ in done} == {i for i, inputs in enumerate(orders) if inputs}
    assert sorted(done) == sorted((i, input) for i, inputs in enumerate(orders) for input in inputs)


def test_a_full_batch_is_of_long_and_short_ones():
    plan = plan_pack([inputs_of([20, 5, 3]), inputs_of([30, 9])], 32, 8)
    assert plan == [(0, Input(20, 0)), (1, Input(9, 1)), (0, Input(3, 2))]


cuts = st.lists(st.integers(1, 40), min_size=1, max_size=8)


@given(cuts, st.integers(0, 2**32 - 1))
def test_the_mean_of_pieces_is_the_mean_of_the_whole(pieces, seed):
    rows = np.random.default_rng(seed).normal(size=(sum(pieces), 5)).astype(np.float32)
    parts = [part.mean(axis=0, keepdims=True) for part in np.split(rows, np.cumsum(pieces)[:-1])]
    mean = merge(Pooling.MEAN, parts, pieces)
    assert (mean.dtype, mean.shape) == (np.dtype(np.float32), (1, 5))
    np.testing.assert_allclose(mean[0], rows.astype(np.float64).mean(axis=0), atol=1e-5)


@given(cuts)
def test_without_pooling_all_rows_stay(pieces):
    rows = np.arange(2 * sum(pieces), dtype=np.float32).reshape(-1, 2)
    parts = np.split(rows, np.cumsum(pieces)[:-1])
    merged = merge(Pooling.NONE, parts, pieces)
    assert merged.dtype == np.float32
    assert (merged == rows).all()


@pytest.mark.parametrize(("pooling", "n"), [(Pooling.CLS, 0), (Pooling.LAST, 2), (Pooling.RANK, 2)])
def test_one_token_speaks_for_all(pooling, n):
    parts = [np.full((1, 3), i, np.float32) for i in range(3)]
    assert merge(pooling, parts, [8, 8, 5]) is parts[n]


@pytest.mark.parametrize(
    ("is_whole", "n_budget", "expected"),
    [
        (False, None, (64, 512)),
        (True, None, (64, 512)),
        (False, 40, (40, 40)),
        (True, 40, (40, 512)),  # what must stay whole is evaluated all the same
        (False, 100, (64, 100)),
        (False, -5, (16, 16)),  # there is always time for a few
        (False, 10_000, (64, 512)),
    ],
)
def test_a_batch_has_room_for_as_much_as_there_is_time_for(is_whole, n_budget, expected):
    assert plan_limits(512, 64, is_whole, n_budget) == expected
