"""Drafts from what was said before: what is found really followed, and of all places the best counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from corral.engine.lookup import MAX_MATCH, MIN_MATCH, find_continuation
from tests.tools.examples import examples

runs = st.lists(st.integers(0, 2), max_size=60)
circles = st.builds(
    lambda before, circle, n: before + circle * n,
    runs,
    st.lists(st.integers(0, 3), min_size=1),
    st.integers(1, 6),
)


def find(tokens: list[int], n_max: int = 8) -> tuple[list[int], int]:
    found, n_match = find_continuation(np.array(tokens, np.int32), n_max)
    assert found.dtype == np.int32
    return found.tolist(), n_match


def places(tokens: list[int]) -> dict[int, int]:
    """Behind how many tokens the end has occurred before, and how much of it."""
    matches = {}
    for end in range(1, len(tokens)):
        n = 0
        while n < min(end, MAX_MATCH) and tokens[end - 1 - n] == tokens[-1 - n]:
            n += 1
        matches[end] = n
    return matches


@given(runs | circles, st.integers(0, 20))
@example([1] * 40, 20)
@examples(400)
def test_it_is_what_followed_the_last_of_the_longest(tokens, n_max):
    found, n_match = find(tokens, n_max)
    matches = places(tokens)
    best = max(matches.values(), default=0)
    if best < MIN_MATCH:
        assert (found, n_match) == ([], 0)
        return
    start = max(end for end, n in matches.items() if n == best)
    assert n_match == best
    assert tokens[start - n_match : start] == tokens[len(tokens) - n_match :]
    # Beyond the end of what is known it is what was found already: a circle.
    everything = tokens + found
    assert found == everything[start : start + n_max]
    assert len(found) == n_max


@pytest.mark.parametrize("n", range(MIN_MATCH + 1))
def test_too_little_to_find_anything(n):
    assert find([7] * n) == ([], 0)
    assert find(list(range(n))) == ([], 0)


def test_a_short_match_is_none():
    assert find([1, 2, 9, 8, 1, 2]) == ([], 0)
    assert find([1, 2, 3, 9, 8, 1, 2, 3]) == ([9, 8, 1, 2, 3, 9, 8, 1], 3)


def test_more_in_common_counts_more_than_being_near():
    far, near = [4, 5, 1, 2, 3, 60], [9, 1, 2, 3, 70]
    assert find([*far, *near, 4, 5, 1, 2, 3], 1) == ([60], 5)


def test_of_equals_the_last_counts():
    assert find([1, 2, 3, 60, 1, 2, 3, 70, 1, 2, 3], 1) == ([70], 3)


def test_more_than_enough_in_common_counts_as_enough():
    """The nearer one of two that have all in common that is looked at."""
    far = [50, *range(MAX_MATCH), 60]
    near = [51, *range(MAX_MATCH), 70]
    assert find([*far, *near, 50, *range(MAX_MATCH)], 1) == ([70], MAX_MATCH)


@pytest.mark.parametrize("period", [1, 2, 3, 5, 8])
def test_circles_go_on(period):
    tokens = [i % period for i in range(6 * period + 4)]
    found, _ = find(tokens, 17)
    assert found == [(len(tokens) + i) % period for i in range(17)]


def test_what_was_given_stays_as_it_was():
    tokens = np.array([1, 2, 3, 4] * 5, np.int32)
    before = tokens.copy()
    found, _ = find_continuation(tokens, 3)
    found[:] = 0
    assert np.array_equal(tokens, before)
