"""What an engine reports about its host memory is what is there."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from corral.core.result import StateCached, StateEvicted
from corral.engine.ram_cache import RamCache
from corral.engine.saved import SavedState
from corral.engine.state_journal import StateJournal


def saved(tokens: list[int], n_bytes: int) -> SavedState:
    return SavedState(np.array(tokens, np.int32), np.zeros(n_bytes, np.uint8).data)


@given(st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=4), st.integers(1, 8))))
def test_the_reported_states_are_those_that_are_kept(states):
    journal = StateJournal(is_read=True)
    cache = RamCache(12, on_drop=journal.drop)
    held: set[int] = set()
    for slot, (tokens, n_bytes) in enumerate(states):
        journal.stash(slot, cache.put(saved(tokens, n_bytes)))
        if slot % 2:
            cache.forget(np.array(tokens[:2], np.int32))
        for event in journal.take():
            if isinstance(event, StateCached):
                held.add(event.state)
            else:
                assert isinstance(event, StateEvicted)
                held.difference_update(event.states)
        assert len(held) == len(list(cache))


def test_nothing_is_noted_that_is_not_read():
    journal = StateJournal(is_read=False)
    journal.stash(0, 1)
    journal.drop(1)
    assert journal.take() == []
