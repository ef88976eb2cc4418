"""A Hypothesis strategy for values cut into pieces."""

from __future__ import annotations

import itertools

from hypothesis import strategies as st


@st.composite
def cuts(draw, source):
    """A value and a way to cut it into pieces."""
    whole = draw(source)
    places = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    edges = [0, *places, len(whole)]
    return whole, [whole[a:b] for a, b in itertools.pairwise(edges)]
