"""The plan of a step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from corral.core.chunk import ALIGNMENT, MIN_CHUNK
from corral.engine.batch import (
    MIN_PREFILL,
    BatchShape,
    NextToken,
    PendingPrompt,
    PromptPart,
    chunk_size,
    plan_batches,
)

SPLIT = BatchShape(n_batch=2048, n_ubatch=512, mixes=False)

prompts = st.lists(st.integers(1, 3000), max_size=6).map(
    lambda ns: [PendingPrompt(10 + i, n) for i, n in enumerate(ns)]
)
generating = st.lists(st.integers(0, 9), unique=True)


@given(generating, prompts, st.integers(0, 2048), st.integers(32, 512), st.booleans())
def test_every_generating_slot_comes_first_and_the_oldest_prompt_moves(
    slots, waiting, budget, n_ubatch, mixes
):
    batches = plan_batches(
        [NextToken(slot) for slot in slots], waiting, budget, BatchShape(2048, n_ubatch, mixes)
    )
    parts = [part for batch in batches for part in batch]
    moved = [prompt for prompt in waiting if prompt.slot in {p.slot for p in parts}]
    assert waiting[:1] == moved[:1]
    assert len(parts) == len({p.slot for p in parts})
    assert all(p.n == 1 for p in parts if p.slot in slots)
    if slots:
        assert set(slots) <= {p.slot for p in batches[0]}
    for prompt in moved:
        (part,) = [p for p in parts if p.slot == prompt.slot]
        assert min(prompt.n_pending, MIN_CHUNK) <= part.n <= min(prompt.n_pending, n_ubatch)


@given(prompts, st.integers(0, 2048))
def test_the_budget_is_kept_but_for_the_floor(waiting, budget):
    total = sum(part.n for batch in plan_batches([], waiting, budget, SPLIT) for part in batch)
    assert total <= max(budget, 2 * MIN_PREFILL)


def test_the_shortest_prompt_is_through_first():
    (a,), (b,) = plan_batches([], [PendingPrompt(0, 1000), PendingPrompt(1, 40)], 200, SPLIT)
    assert (a, b) == (PromptPart(0, 160), PromptPart(1, 40))


def test_prompts_of_the_same_length_are_evaluated_one_after_the_other():
    ((part,),) = plan_batches(
        [], [PendingPrompt(0, 300), PendingPrompt(1, 300), PendingPrompt(2, 300)], 200, SPLIT
    )
    assert part == PromptPart(0, 200)


def test_forced_tokens_of_every_stream_go_on():
    forced = [PendingPrompt(slot, 40, is_answer=True) for slot in range(3)]
    batches = plan_batches([], [*forced, PendingPrompt(3, 900)], 50, SPLIT)
    assert [part for (part,) in batches] == [PromptPart(slot, MIN_PREFILL) for slot in range(4)]


def test_split_kv_keeps_prompts_and_tokens_apart():
    batches = plan_batches(
        [NextToken(2), NextToken(0)], [PendingPrompt(1, 100), PendingPrompt(3, 100)], 164, SPLIT
    )
    assert [[p.slot for p in batch] for batch in batches] == [[0, 2], [1], [3]]


def test_unified_kv_takes_everything_at_once():
    (batch,) = plan_batches(
        [NextToken(2), NextToken(0)], [PendingPrompt(1, 100)], 64, BatchShape(2048, 512, True)
    )
    assert [p.slot for p in batch] == [0, 1, 2]


@given(st.integers(MIN_CHUNK, 5000), st.integers(1, 600))
def test_no_chunk_of_a_longer_prompt_is_too_small_to_be_exact(n_pending, n_max):
    while n_pending:
        n = chunk_size(n_pending, n_max)
        assert MIN_CHUNK <= n <= max(n_max, 2 * MIN_CHUNK)
        n_pending -= n
        assert n_pending == 0 or (n % ALIGNMENT == 0 and n_pending >= MIN_CHUNK)


@given(st.integers(1, MIN_CHUNK - 1), st.integers(1, 600))
def test_a_prompt_that_small_is_one_chunk(n_pending, n_max):
    assert chunk_size(n_pending, n_max) == n_pending


@given(generating, prompts, st.integers(0, 2048), st.integers(16, 200))
def test_a_mixed_batch_never_overflows_and_always_moves(slots, waiting, budget, n_batch):
    for batch in plan_batches(
        [NextToken(slot) for slot in slots], waiting, budget, BatchShape(n_batch, 16, True)
    ):
        assert 0 < sum(part.n for part in batch) <= n_batch
        assert all(part.n > 0 for part in batch)
        assert not waiting or len(slots) == n_batch or any(part.slot >= 10 for part in batch)


@given(generating, prompts, st.integers(0, 2048), st.booleans(), st.lists(st.sampled_from([b"", b"a", b"b"])))
def test_variants_of_a_model_are_in_batches_of_their_own(slots, waiting, budget, mixes, variants):
    variant_of = dict(zip([*slots, *(p.slot for p in waiting)], variants, strict=False))
    tokens = [NextToken(slot, variant_of.get(slot, b"")) for slot in slots]
    waiting = [PendingPrompt(p.slot, p.n_pending, variant_of.get(p.slot, b"")) for p in waiting]
    batches = plan_batches(tokens, waiting, budget, BatchShape(2048, 512, mixes))
    for batch in batches:
        assert len({variant_of.get(part.slot, b"") for part in batch}) == 1
    served = [part.slot for batch in batches for part in batch]
    assert len(served) == len(set(served))
    assert {*slots, *(p.slot for p in waiting[:1])} <= set(served)
