"""Checkpoints on real libllama: a conversation goes back to one, and answers as if all was evaluated."""

from __future__ import annotations

from typing import Any

import pytest

from corral.core.chunk import ALIGNMENT, MIN_CHUNK
from corral.core.params import Guidance
from corral.core.result import Admitted, Tier
from corral.core.task import Stop, Verb
from tests.model.llama_harness import GREEDY, SEEDED, LlamaHarness, alone, task
from tests.model.slot_actions import act, chosen, held, restore, save

NAMES = ["mamba", "jamba", "gemma-swa"]
# The window of gemma-swa has 64 tokens, and its cells are reused after a few hundred.
SHAPE = {"n_ubatch": 64, "n_ctx_slot": 1024}
NEAR = MIN_CHUNK + ALIGNMENT  # tokens before the end of a prompt within which it has a checkpoint

shapes = pytest.mark.parametrize(
    "shape", [{}, {"n_parallel": 3}, {"n_parallel": 3, "kv_unified": True}], ids=["one", "split", "unified"]
)


@pytest.fixture(params=NAMES)
def path(request, hybrids):
    return hybrids / f"{request.param}.gguf"


def eot(bench) -> int:
    return bench.backend.vocab.token_of("<|im_end|>")


def messages(bench, *sizes: int) -> list[int]:
    """A conversation of messages with these numbers of tokens."""
    return [t for i, n in enumerate(sizes) for t in [*bench.prompt(n - 1, seed=i), eot(bench)]]


def expected(path, one, shape=()):
    """What a task answers if nothing is cached. Sums over cells in another order round differently: in those
    of a window, or in one buffer for all slots."""
    answer = alone(path, one, n_ctx_checkpoints=0, **{**SHAPE, **dict(shape)})
    assert len(answer) == 24
    return answer


def assert_same(path, answer, other, unified=False) -> None:
    if unified or path.stem == "gemma-swa":
        assert chosen(answer) == chosen(other)
    else:
        assert answer == other


@shapes
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_second_turn_evaluates_only_what_is_new(path, shape, sampling):
    """Whose history has another answer than the one that was generated, as without its reasoning."""
    with LlamaHarness(path, **SHAPE, **shape) as bench:
        first = messages(bench, 300, 200)
        bench.run(task(0, first, sampling))
        second = task(1, [*first, *bench.prompt(40, seed=8)], sampling)
        bench.run(second)
        assert bench.n_cached(1) >= len(first) - NEAR
        assert_same(path, bench.answer(1), expected(path, second, shape))


@shapes
def test_an_edit_goes_back_to_the_nearest_checkpoint(path, shape):
    with LlamaHarness(path, checkpoint_min_step=64, **SHAPE, **shape) as bench:
        whole = messages(bench, 150, 150, 150, 150)
        bench.run(task(0, whole))
        for id, n in enumerate((470, 310, 160), start=1):
            edited = task(id, [*whole[:n], *bench.prompt(60, seed=20 + id)])
            bench.run(edited)
            at = n - n % 150
            assert at - ALIGNMENT < bench.n_cached(id) <= n
            assert_same(path, bench.answer(id), expected(path, edited, shape))


def test_without_checkpoints_nothing_is_reused_after_an_edit(path):
    with LlamaHarness(path, n_ctx_checkpoints=0, **SHAPE) as bench:
        whole = messages(bench, 200, 200, 200)
        bench.run(task(0, whole, n_predict=1))
        bench.run(task(1, [*whole[:300], *bench.prompt(60, seed=9)], n_predict=1))
        assert bench.n_cached(1) == 0
        assert not any(slot.checkpoints for slot in bench.slots)


@pytest.mark.parametrize("unified", [False, True], ids=["split", "unified"])
def test_slots_share_checkpoints(path, unified):
    with LlamaHarness(path, n_parallel=3, kv_unified=unified, checkpoint_min_step=64, **SHAPE) as bench:
        whole = messages(bench, 200, 200, 200)
        bench.run(task(0, whole, id_slot=0))
        other = task(1, [*whole[:420], *bench.prompt(60, seed=9)], id_slot=2)
        bench.run(other)
        assert 400 - ALIGNMENT < bench.n_cached(1) <= 420
        assert_same(
            path, bench.answer(1), expected(path, other, {"n_parallel": 3, "kv_unified": unified}), unified
        )
        again = task(2, [*whole, *bench.prompt(30, seed=5)], id_slot=0)
        bench.run(again)
        assert bench.n_cached(2) >= len(whole) - NEAR
        assert_same(
            path, bench.answer(2), expected(path, again, {"n_parallel": 3, "kv_unified": unified}), unified
        )


@pytest.mark.parametrize("n_parallel", [1, 3])
def test_a_restored_conversation_has_its_checkpoints(path, n_parallel):
    with LlamaHarness(path, **SHAPE) as bench:
        whole = messages(bench, 200, 200, 200)
        bench.run(task(0, whole))
        places = [checkpoint.n for checkpoint in bench.slots[0].checkpoints]
        blob = save(bench, 0)
    with LlamaHarness(path, n_parallel=n_parallel, **SHAPE) as bench:
        restore(bench, blob, n_parallel - 1)
        assert [checkpoint.n for checkpoint in bench.slots[n_parallel - 1].checkpoints] == places
        edited = task(1, [*whole[:500], *bench.prompt(60, seed=9)])
        bench.run(edited)
        assert bench.n_cached(1) >= 400 - ALIGNMENT
        assert_same(path, bench.answer(1), expected(path, edited, {"n_parallel": n_parallel}))


def test_checkpoints_come_back_from_memory(path):
    with LlamaHarness(path, **SHAPE) as bench:
        whole = messages(bench, 200, 200, 200)
        bench.run(task(0, whole))
        bench.run(task(1, bench.prompt(300, seed=7), n_predict=1))
        edited = task(2, [*whole[:500], *bench.prompt(60, seed=9)])
        bench.run(edited)
        (admitted,) = bench.of(2, Admitted)
        assert (admitted.tier, admitted.n_cached >= 400 - ALIGNMENT) == (Tier.RAM, True)
        assert_same(path, bench.answer(2), expected(path, edited))


def test_checkpoints_come_back_from_disk(path, tmp_path):
    options: Any = {**SHAPE, "cache_disk": str(tmp_path)}
    with LlamaHarness(path, **options) as bench:
        whole = messages(bench, 200, 200, 200)
        bench.run(task(0, whole))
        bench.engine.handle(Stop())
    with LlamaHarness(path, **options) as bench:
        edited = task(2, [*whole[:500], *bench.prompt(60, seed=9)])
        bench.run(edited)
        (admitted,) = bench.of(2, Admitted)
        assert (admitted.tier, admitted.n_cached >= 400 - ALIGNMENT) == (Tier.DISK, True)
        assert_same(path, bench.answer(2), expected(path, edited))


def test_checkpoints_outlive_a_larger_context(path):
    """A request with a negative makes the engine add sequences."""
    with LlamaHarness(path, n_parallel=2, **SHAPE) as bench:
        whole = messages(bench, 200, 200, 200)
        bench.run(task(0, whole, id_slot=0))
        guidance = Guidance(scale=1.5, negative=tuple(bench.prompt(20, seed=4)))
        bench.run(task(1, bench.prompt(40, seed=3), id_slot=1, guidance=guidance))
        edited = task(2, [*whole[:500], *bench.prompt(60, seed=9)], id_slot=0)
        bench.run(edited)
        assert bench.n_cached(2) >= 400 - ALIGNMENT
        assert_same(path, bench.answer(2), expected(path, edited, {"n_parallel": 2}))


def test_a_fork_has_the_checkpoints_too(path):
    with LlamaHarness(path, n_parallel=2, **SHAPE) as bench:
        whole = messages(bench, 200, 200, 200)
        bench.run(task(0, whole, id_slot=0))
        act(bench, Verb.FORK, 1, source=0)
        act(bench, Verb.ERASE, 0)
        assert held(bench, 1)[: len(whole)] == whole
        edited = task(2, [*whole[:500], *bench.prompt(60, seed=9)], id_slot=1)
        bench.run(edited)
        assert bench.n_cached(2) >= 400 - ALIGNMENT
        assert_same(path, bench.answer(2), expected(path, edited, {"n_parallel": 2}))


def test_an_engine_that_was_lost_goes_on_where_it_was(path):
    with LlamaHarness(path, **SHAPE) as bench:
        first = messages(bench, 200, 100)
        bench.run(task(0, first))
        second = [*first, *bench.prompt(50, seed=6)]
        bench.run(task(1, second))
        whole = bench.tokens(1)
    with LlamaHarness(path, **SHAPE) as bench:
        bench.run(task(1, second, resume=whole[:9]))
        assert bench.tokens(1) == whole[9:]
