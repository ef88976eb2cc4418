"""Drafts on models whose memory cannot be cut: wrong ones are taken back to a mark, and no answer changes."""

from __future__ import annotations

import pytest

from tests.model.llama_harness import task
from tests.model.test_speculation import (
    BIASED,
    PLAIN,
    DraftHarness,
    LlamaHarness,
    all_tasks,
    assert_same,
    seeded,
    told,
)
from tests.model.test_speculation import (
    always as always,
)

NAMES = ("jamba", "mamba")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("always")
def test_drafts_change_nothing(hybrids, name):
    path = hybrids / f"{name}.gguf"
    with LlamaHarness(path, **PLAIN) as bench:
        tasks = [
            one for one in all_tasks(bench) if not (one.params.constraint and one.params.constraint.checks)
        ]
        for one in tasks:
            bench.run(one)
        expected = [told(bench, one.id) for one in tasks]
    with DraftHarness(path) as bench:
        assert bench.n_ahead > 2
        for one in tasks:
            bench.run(one)
        for one, before in zip(tasks, expected, strict=True):
            found = told(bench, one.id)
            # A wrong draft at the very end is taken back whole: the slot keeps less.
            assert (found[0], found[1].rpartition("|")[0]) == (before[0], before[1].rpartition("|")[0])
            assert_same((*before[:2], found[2]), before)
        drafted, accepted = bench.totals
        assert 0 < accepted < drafted


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("always")
def test_streams_beside_each_other_and_the_next_turn(hybrids, name):
    path = hybrids / f"{name}.gguf"

    def run(bench) -> list[list[int]]:
        prompts = [bench.prompt(40, seed=i) for i in range(3)]
        tasks = [task(i, p, seeded(logit_bias=BIASED, seed=i), n_predict=40) for i, p in enumerate(prompts)]
        bench.run(*tasks)
        more = [[*p, *bench.tokens(i), *bench.prompt(9, seed=9)] for i, p in enumerate(prompts)]
        bench.run(
            *(task(3 + i, p, seeded(logit_bias=BIASED, seed=i), n_predict=30) for i, p in enumerate(more))
        )
        return [bench.tokens(i) for i in range(6)]

    with LlamaHarness(path, n_parallel=3, **PLAIN) as bench:
        expected = run(bench)
    with DraftHarness(path, n_parallel=3) as bench:
        assert run(bench) == expected
        assert 0 < bench.totals[1] < bench.totals[0]
