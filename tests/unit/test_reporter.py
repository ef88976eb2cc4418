"""What the engine remembers of earlier prompts, to tell one that is no longer cached from a new one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from corral.engine.reporter import BLOCK, KnownPrompts
from corral.engine.reuse_key import ReuseKey

OURS, THEIRS = ReuseKey(tenant=b"ours"), ReuseKey(tenant=b"theirs")


@given(st.integers(0, 5 * BLOCK), st.integers(0, 5 * BLOCK))
def test_whole_blocks_of_a_common_beginning_are_known(n_held, n_common):
    known = KnownPrompts()
    held = np.arange(n_held, dtype=np.int32)
    known.add(held, OURS)
    prompt = np.concatenate([held[:n_common], np.full(100, -1, np.int32)])
    assert known.n_known(prompt, OURS) == min(n_held, n_common) // BLOCK * BLOCK


def test_nothing_is_known_of_other_owners_and_adapters():
    known, tokens = KnownPrompts(), np.arange(200, dtype=np.int32)
    known.add(tokens, OURS)
    assert known.n_known(tokens, OURS) == 192
    assert known.n_known(tokens, THEIRS) == 0
    assert known.n_known(tokens, ReuseKey(b"adapter", b"ours")) == 0


def test_the_oldest_are_forgotten():
    known, first, second = KnownPrompts(4), np.arange(256, dtype=np.int32), np.arange(9, 265, dtype=np.int32)
    known.add(first, OURS)
    known.add(second, OURS)
    assert (known.n_known(first, OURS), known.n_known(second, OURS)) == (0, 256)
