"""Pure decisions: prefixes, slots, shifts, costs, the RAM tier, draws, wedges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.chunk import common_prefix
from corral.core.draw import Twister
from corral.core.result import Heartbeat
from corral.engine.context_shift import plan_shift
from corral.engine.cost import CostModel, Load
from corral.engine.prefix import (
    MIN_REUSE,
    CachedPrefix,
    Prefix,
    PrefixOrigin,
    choose_slot,
    plan_prefix,
    reusable,
)
from corral.engine.ram_cache import RamCache
from corral.engine.saved import SavedState
from corral.engine.slot import TokenBuffer
from corral.link.heartbeat import is_wedged
from tests.unit.fake import Wish


def wish(prompt: np.ndarray) -> Any:
    """A request, as far as caches look at it."""
    return Wish(prompt)


tokens = st.lists(st.integers(0, 2), max_size=30).map(lambda ts: np.array(ts, np.int32))


def array(*values):
    return np.array(values, np.int32)


@given(tokens, tokens)
def test_common_prefix(a, b):
    n = common_prefix(a, b)
    assert a[:n].tolist() == b[:n].tolist()
    assert n == min(len(a), len(b)) or a[n] != b[n]


PROMPT = np.arange(100, dtype=np.int32)
NONE = array()


@pytest.mark.parametrize(
    ("own", "neighbours", "n_ram", "origin", "n"),
    [
        (NONE, [], 0, PrefixOrigin.OWN, 0),
        (PROMPT, [], 0, PrefixOrigin.OWN, 92),
        (PROMPT[:7], [], 0, PrefixOrigin.OWN, 0),
        (PROMPT[:50], [CachedPrefix(1, PROMPT[: 48 + MIN_REUSE - 1])], 0, PrefixOrigin.OWN, 48),
        (PROMPT[:50], [CachedPrefix(1, PROMPT[: 48 + MIN_REUSE])], 0, PrefixOrigin.SLOT, 64),
        (
            NONE,
            [CachedPrefix(1, PROMPT[:20]), CachedPrefix(2, PROMPT[:24])],
            0,
            PrefixOrigin.SLOT,
            24,
        ),
        (PROMPT[:50], [CachedPrefix(1, PROMPT[:20])], 80, PrefixOrigin.STORE, 80),
        (PROMPT[:50], [CachedPrefix(1, PROMPT[:20], 0, PROMPT)], 70, PrefixOrigin.WAIT, 92),
        (NONE, [CachedPrefix(1, NONE, 0, PROMPT)], 0, PrefixOrigin.WAIT, 100),
        (NONE, [CachedPrefix(1, PROMPT[:20], 20, PROMPT, False)], 0, PrefixOrigin.WAIT, 100),
        (PROMPT[:90], [CachedPrefix(1, PROMPT[:96], 0, PROMPT)], 0, PrefixOrigin.WAIT, 100),
        (PROMPT[:90], [CachedPrefix(1, PROMPT[:20], 0, PROMPT)], 0, PrefixOrigin.OWN, 88),
    ],
)
def test_where_a_prompt_starts(own, neighbours, n_ram, origin, n):
    prefix = plan_prefix(PROMPT, CachedPrefix(0, own), neighbours, n_ram)
    assert (prefix.origin, prefix.n) == (origin, n)


@pytest.mark.parametrize(
    ("similarity", "expected"),
    [(0.5, 1), (0.7, 2), (0.0, 2)],
    ids=["alike", "not alike enough", "off"],
)
def test_which_slot_serves_a_prompt(similarity, expected):
    idle = [(0, PROMPT[:10], 9), (1, PROMPT[:60], 8), (2, NONE, 3)]
    assert choose_slot(idle, PROMPT, similarity) == expected


@pytest.mark.parametrize(
    ("akin", "similarity", "expected"),
    [([0], 0.7, 0), ([3], 0.7, 3), ([3], 0.0, 3), ([0, 3], 0.0, 3), ([3], 0.5, 3), ([0], 0.5, 1)],
    ids=["less of the prompt", "as much", "similarity off", "two", "alike and akin", "alike elsewhere"],
)
def test_a_key_prefers_its_slot_but_not_to_one_that_is_alike(akin, similarity, expected):
    idle = [(0, PROMPT[:10], 9), (1, PROMPT[:60], 8), (2, NONE, 3), (3, PROMPT[:60], 7)]
    assert choose_slot(idle, PROMPT, similarity, akin) == expected


@given(
    n_ctx=st.integers(8, 4096),
    n_prompt=st.integers(1, 5000),
    n_keep=st.integers(-1, 5000),
    n_discard=st.integers(0, 2**31 - 1),
    adds_bos=st.booleans(),
)
def test_a_shift_always_makes_room_and_stays_inside(n_ctx, n_prompt, n_keep, n_discard, adds_bos):
    n_tokens = n_ctx - 1
    keep, discard = plan_shift(n_tokens, n_ctx, n_prompt, n_keep, n_discard, adds_bos)
    assert keep >= 0
    assert discard >= 1
    assert keep + discard < n_tokens


def test_the_budget_follows_the_measured_cost():
    cost = CostModel()
    assert cost.n_tokens_in(cost.headroom_ms(200)) > 0
    for _ in range(20):
        cost.observe(Load(n_generating=1), 10.0)
        cost.observe(Load(n_prompt=50), 350.0)
    assert 20 <= cost.n_tokens_in(cost.headroom_ms(200)) <= 25
    assert cost.predict_ms(Load(1, 100)) == pytest.approx(710)
    cost.observe(Load(1, 100), 710.0)
    assert cost.predict_ms(Load(n_prompt=100)) == pytest.approx(700, rel=0.05)


def test_what_a_batch_costs_whatever_is_in_it_is_told_from_what_a_token_costs():
    cost = CostModel()
    for n in (16, 500, 100, 16, 250):
        cost.observe(Load(n_prompt=n), 14.0 + 0.1 * n)
    assert cost.prompt.batch_ms == pytest.approx(14.0, abs=0.5)
    assert cost.n_tokens_in(64.0) == pytest.approx(500, abs=10)
    for _ in range(50):  # all alike: they say nothing new of it
        cost.observe(Load(n_prompt=200), 54.0)
    assert cost.n_tokens_in(54.0) == pytest.approx(200, abs=10)


def test_what_cannot_be_cut_serves_only_whole():
    empty, held = CachedPrefix(0, NONE), CachedPrefix(1, PROMPT[:61], 61, PROMPT[:99], False)
    assert plan_prefix(PROMPT, CachedPrefix(0, PROMPT[:50], 50), [held], 0).n == 50
    assert plan_prefix(PROMPT, empty, [held], 0) == Prefix(PrefixOrigin.SLOT, 61, 1)
    longer = CachedPrefix(1, np.append(PROMPT[:61], 0), 62)
    assert plan_prefix(PROMPT, empty, [longer], 0).n == 0


runs = st.lists(st.integers(0, 1), max_size=40).map(lambda ts: np.array(ts, np.int32))


@given(st.lists(st.tuples(runs, st.integers(0, 30)), max_size=20), runs, st.booleans())
def test_the_ram_tier_keeps_its_budget_and_finds_the_longest(entries, prompt, can_cut):
    def n_usable(saved):
        return reusable(saved.tokens, prompt, 0 if can_cut else len(saved.tokens))

    cache = RamCache(100, lambda n: 0 if can_cut else n)
    for run, size in entries:
        cache.put(SavedState(run, bytes(size)))
        assert cache.n_bytes <= 100
    longest = max(map(n_usable, cache), default=0)
    entry = cache.get(wish(prompt))
    assert longest == (0 if entry is None else n_usable(entry))


def test_the_ram_tier_forgets_the_least_recently_used():
    cache = RamCache(2)
    first, second, third = (np.full(20, i, np.int32) for i in range(3))
    cache.put(SavedState(first, b"a"))
    cache.put(SavedState(second, b"b"))
    assert cache.get(wish(first)) is not None
    cache.put(SavedState(third, b"c"))
    assert [cache.get(wish(run)) is not None for run in (first, second, third)] == [True, False, True]


@given(st.lists(st.integers(0, 9), min_size=5, max_size=20), st.integers(0, 4), st.integers(1, 3))
def test_a_token_buffer_forgets_the_middle_like_a_list(values, start, n):
    n = min(n, len(values) - start)
    buffer = TokenBuffer(32)
    buffer.extend(array(*values))
    buffer.move(start + n, len(values), start)
    buffer.truncate(len(values) - n)
    del values[start : start + n]
    assert buffer.view.tolist() == values


def test_draws_are_those_of_a_mersenne_twister():
    """What `std::mt19937(42)` gives through the standard distributions of double and float."""
    draws = Twister(42)
    doubles = {0: 0.79654298428784598, 1: 0.18343478789336848, 1000: 0.086705210428948729}
    singles = {0: 0.37454012, 2: 0.95071429, 1000: 0.698161721}
    assert {i: draws.double(i) for i in doubles} == doubles
    assert {i: draws.single(i) for i in singles} == pytest.approx(singles, rel=1e-7)
    assert draws.double(1) == doubles[1]
    assert Twister(42 + 2**32).double(0) == doubles[0]
    assert Twister(5489).double(4999) == pytest.approx(4123659995 / 2**32)  # the word the standard asks for


@pytest.mark.parametrize(
    ("decode_ms", "predicted_ms", "expected"),
    [
        (0, 0, False),
        (599_000, 0, False),
        (601_000, 0, True),
        (59_000, 10, False),
        (61_000, 10, True),
        (61_000, 5_000, False),
        (251_000, 5_000, True),
    ],
)
def test_a_decode_is_wedged_only_past_anything_its_cost_explains(decode_ms, predicted_ms, expected):
    assert is_wedged(Heartbeat(decode_ms, predicted_ms), timeout_s=10) is expected
