"""Probabilities of a prompt's own tokens: the same however the prompt is cut, cached or interrupted."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.errors import NonFiniteLogits
from corral.core.result import Admitted, PromptProbs, TokenProbs
from corral.engine.prompt_probs import MAX_ROWS, prompt_probs, token_probs
from tests.unit.engine_harness import EngineHarness, alone, task
from tests.unit.fake import N_VOCAB, FakeBackend
from tests.unit.token_by_token import expected

PROMPT = [3 + (7 * i) % 50 for i in range(45)]


def reported(bench: EngineHarness, id: int) -> list[TokenProbs]:
    """What the events say together; each goes on where the one before it ended."""
    probs: list[TokenProbs] = []
    for event in bench.of(id, PromptProbs):
        assert event.start == len(probs) + 1
        probs += event.probs
    return probs


def test_a_row_becomes_a_softmax():
    logits = np.array([1.0, 3.0, 2.0, 3.0], np.float32)
    total = sum(math.exp(x) for x in logits.tolist())
    found = token_probs(logits, 2, 3)
    assert found.chosen.id == 2
    assert math.isclose(found.chosen.prob, math.exp(2) / total, rel_tol=1e-6)
    assert [p.id for p in found.top] == [1, 3, 2]
    assert token_probs(logits, 0, 0).top == []
    assert len(token_probs(logits, 0, 99).top) == 4


def test_rows_that_are_no_numbers_are_refused():
    with pytest.raises(NonFiniteLogits):
        token_probs(np.array([np.nan, 1.0], np.float32), 1, 1)


def test_a_banned_token_has_no_probability():
    assert token_probs(np.array([-np.inf, 1.0], np.float32), 0, 1).chosen.prob == 0


def test_what_follows_the_prompt_is_not_part_of_it():
    prompt = np.array([5, 6, 7], np.int32)
    rows = [np.zeros(N_VOCAB, np.float32)] * 3
    assert [p.chosen.id for p in prompt_probs(prompt, 0, 3, 0, lambda back: rows[back])] == [6, 7]
    assert prompt_probs(prompt, 2, 1, 0, lambda back: rows[back]) == []


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 18, 33, 45])
@pytest.mark.parametrize("mixes", [False, True])
def test_every_token_but_the_first_has_a_probability(n, mixes):
    bench = EngineHarness(FakeBackend(mixes_batches=mixes))
    bench.run(task(1, PROMPT[:n], n_prompt_probs=2, cache_prompt=False))
    assert reported(bench, 1) == expected(PROMPT[:n], 2)
    assert bench.tokens(1) == alone(task(1, PROMPT[:n]))


@given(n=st.integers(1, 200), n_ubatch=st.sampled_from([16, 32]), n_others=st.integers(0, 3))
def test_no_batch_has_more_rows_than_a_context_keeps(n, n_ubatch, n_others):
    prompt = [3 + i % 40 for i in range(n)]
    backend = FakeBackend(mixes_batches=True, n_ubatch=n_ubatch)
    bench = EngineHarness(backend)
    bench.run(
        *(task(10 + i, [4 + i] * 60, n_predict=12) for i in range(n_others)),
        task(1, prompt, n_prompt_probs=1, cache_prompt=False),
    )
    assert all(sum(chunk.logits for chunk in batch) <= MAX_ROWS for batch in backend.batches)
    assert reported(bench, 1) == expected(prompt, 1)


def test_others_pay_nothing():
    backend = FakeBackend()
    bench = EngineHarness(backend)
    bench.run(task(1, PROMPT))
    assert bench.of(1, PromptProbs) == []
    assert all(chunk.logits <= 1 for batch in backend.batches for chunk in batch)


def test_a_prompt_that_is_cached_is_evaluated_again_and_then_serves_others():
    bench = EngineHarness(FakeBackend())
    bench.run(task(1, PROMPT))
    bench.run(task(2, PROMPT, n_prompt_probs=0, cache_prompt=False, n_predict=0))
    assert [event.n_cached for event in bench.of(2, Admitted)] == [0]
    assert reported(bench, 2) == expected(PROMPT, 0)
    bench.run(task(3, PROMPT))
    assert [event.n_cached > 0 for event in bench.of(3, Admitted)] == [True]
    assert bench.tokens(3) == bench.tokens(1)


def test_an_aborted_batch_reports_nothing_twice():
    backend = FakeBackend()
    bench = EngineHarness(backend)
    bench.engine.handle(task(1, PROMPT, n_prompt_probs=1, cache_prompt=False))
    bench.engine.step()
    backend.aborts = True
    bench.run()
    assert reported(bench, 1) == expected(PROMPT, 1)
