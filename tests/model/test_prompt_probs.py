"""Probabilities of prompts' tokens on real libllama: what a plain evaluation of all tokens gives."""

from __future__ import annotations

import math

import numpy as np
import pytest

from corral.core.result import PromptProbs, TokenProbs
from tests.model.llama_harness import LlamaHarness, task
from tests.model.raw import CLOSE, known_log_probs, log_softmax, raw_logits, rounding

TINY = ["llama-bpe", "llama-spm", "gemma-swa", "mamba"]


def on(*names) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("model", names, indirect=True)


def reported(bench: LlamaHarness, id: int) -> list[TokenProbs]:
    probs: list[TokenProbs] = []
    for event in bench.of(id, PromptProbs):
        assert event.start == len(probs) + 1
        probs += event.probs
    return probs


def chosen(probs: list[TokenProbs]) -> np.ndarray:
    return np.array([math.log(p.chosen.prob) for p in probs])


@on(*TINY)
@pytest.mark.parametrize("kv_unified", [False, True], ids=["split", "unified"])
def test_they_are_those_of_libllama_alone(model, kv_unified):
    with LlamaHarness(model, 2, kv_unified=kv_unified, cache_type_k="f32", cache_type_v="f32") as bench:
        prompt = bench.prompt(75)
        others = [task(7, bench.prompt(40, seed=1)), task(8, bench.prompt(50, seed=2))]
        bench.run(others[0], task(0, prompt, n_prompt_probs=3, cache_prompt=False), others[1])
        probs = reported(bench, 0)
    logits = raw_logits(model, prompt)
    rows = log_softmax(logits)
    assert [p.chosen.id for p in probs] == prompt[1:]
    assert np.abs(chosen(probs) - known_log_probs(logits, prompt)).max() < CLOSE
    for i, p in enumerate(probs):
        top = [each.prob for each in p.top]
        assert top == sorted(top, reverse=True)
        assert math.isclose(math.log(top[0]), rows[i].max(), abs_tol=CLOSE)
        assert all(abs(math.log(each.prob) - rows[i, each.id]) < CLOSE for each in p.top)


@on("default", "llama-bpe")
def test_where_types_round_they_are_so_but_for_rounding(model):
    with LlamaHarness(model) as bench:
        prompt = bench.backend.vocab.tokenize("The capital of France is Paris. The sky is blue.", True, False)
        bench.run(task(0, prompt, n_prompt_probs=1, cache_prompt=False, n_predict=0))
        probs = reported(bench, 0)
    known = known_log_probs(raw_logits(model, prompt), prompt)
    tolerance = rounding(model, prompt)
    assert np.abs(chosen(probs) - known).max() < tolerance < 0.2 * np.ptp(known)


@on(*TINY)
def test_a_prompt_with_probabilities_has_the_same_answer(model):
    with LlamaHarness(model) as bench:
        prompt = bench.prompt(90)
        bench.run(task(0, prompt))
        bench.run(task(1, prompt, n_prompt_probs=0, cache_prompt=False))
        bench.run(task(2, prompt))
        assert bench.n_cached(1) == 0
        assert len(reported(bench, 1)) == 89
        assert bench.tokens(0) == bench.tokens(1) == bench.tokens(2)


@on("llama-bpe")
def test_the_whole_prompt_may_be_cached_and_the_sum_stays(model):
    """The loglikelihood of a continuation is the difference of two prompts', in any order."""
    with LlamaHarness(model, n_parallel=2) as bench:
        prompt = bench.prompt(60)
        bench.run(task(0, prompt[:40], n_prompt_probs=0, cache_prompt=False, n_predict=0))
        bench.run(task(1, prompt, n_prompt_probs=0, cache_prompt=False, n_predict=1))
        shorter, longer = reported(bench, 0), reported(bench, 1)
    assert [p.chosen.id for p in longer[:39]] == [p.chosen.id for p in shorter]
    assert np.abs(chosen(longer)[:39] - chosen(shorter)).max() < rounding(model, prompt)
