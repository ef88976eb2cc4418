"""The index of saved states gives what a comparison with each of them gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from corral.core.chunk import TokenArray, common_prefix
from corral.engine.checkpoint import Checkpoint
from corral.engine.prefix import replaces, usable
from corral.engine.ram_cache import RamCache
from corral.engine.reuse_key import ReuseKey
from corral.engine.saved import NEVER, SavedState
from corral.engine.token_index import TokenIndex

runs = st.lists(st.sampled_from([0, 1, 300, -5]), max_size=12).map(lambda ts: np.array(ts, np.int32))
texts = st.lists(st.integers(0, 1), max_size=40).map(lambda ts: np.array(ts, np.int32))
states = st.builds(
    SavedState,
    tokens=texts,
    state=st.just(b"x"),
    shifted_from=st.sampled_from([NEVER, NEVER, 9]),
    lora_key=st.sampled_from([b"", b"", b"l"]),
    tenant=st.sampled_from([b"", b"t"]),
    checkpoints=st.sampled_from([(), (), (Checkpoint(8, b"c"),)]),
)


@dataclass
class Wish:
    """A request, as far as caches look at it."""

    prompt: TokenArray
    accepts_shifted: bool
    reuse_key = ReuseKey()


def _is_prefix(run, tokens) -> bool:
    return common_prefix(run, tokens) == len(run)


@given(st.lists(runs, max_size=12), st.sets(st.integers(0, 11)), runs)
def test_an_index_finds_what_a_scan_finds(given_runs, removed, tokens):
    index, left = TokenIndex(), dict(enumerate(given_runs))
    for number, run in left.items():
        index.add(number, run)
    for number in removed & left.keys():
        index.remove(number, left.pop(number))
    n, number = index.nearest(tokens)
    assert n == max((common_prefix(run, tokens) for run in left.values()), default=0)
    assert (n, number) == (0, -1) or n == common_prefix(left[number], tokens)
    found = list(index.prefixes_of(tokens))
    assert sorted(found) == [number for number, run in left.items() if _is_prefix(run, tokens)]
    assert [len(left[number]) for number in found] == sorted((len(left[n]) for n in found), reverse=True)
    assert len(index) == len(left)


@given(st.lists(states, max_size=12), states, texts, st.booleans())
def test_a_cache_of_states_gives_and_drops_what_a_scan_does(given_states, new, prompt, accepts_shifted):
    dropped = set[int]()
    cache = RamCache(100, on_drop=dropped.add)
    kept = {cache.put(saved): saved for saved in given_states}
    kept = {key: saved for key, saved in kept.items() if key not in dropped}
    dropped.clear()
    request = cast(Any, Wish(prompt, accepts_shifted))
    longest = max((usable(saved, request, lambda _: 0) for saved in kept.values()), default=0)
    found = cache.get(request)
    assert longest == (0 if found is None else usable(found, request, lambda _: 0))
    near = list(cache.near(prompt, lambda key: key.can_serve(ReuseKey())))
    serving = [saved.tokens for saved in kept.values() if saved.reuse_key.can_serve(ReuseKey())]
    assert max((common_prefix(run, prompt) for run in near), default=0) == max(
        (common_prefix(run, prompt) for run in serving), default=0
    )
    cache.put(new)
    assert dropped == {key for key, old in kept.items() if replaces(new, old, lambda _: 0)}
    cache.forget(prompt)
    assert not any(_is_prefix(saved.tokens, prompt) for saved in cache)
    assert cache.n_bytes == sum(saved.n_bytes for saved in cache)
