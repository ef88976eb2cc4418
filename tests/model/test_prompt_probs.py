"""Probabilities of prompts' tokens on real libllama: what a plain evaluation of all tokens gives."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from corral.core.result import PromptProbs, TokenProbs
from tests.model.llama_harness import LlamaHarness, task
from tests.model.raw import raw_logits

TINY = ["llama-bpe", "llama-spm", "gemma-swa", "mamba"]


def on(*names) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("model", names, indirect=True)


def reported(bench: LlamaHarness, id: int) -> list[TokenProbs]:
    probs: list[TokenProbs] = []
    for event in bench.of(id, PromptProbs):
        assert event.start == len(probs) + 1
        probs += event.probs
    return probs


def log_softmax(model: Path, prompt: list[int]) -> np.ndarray:
    logits = raw_logits(model, prompt).astype(np.float64)
    best = logits.max(axis=1, keepdims=True)
    return logits - best - np.log(np.exp(logits - best).sum(axis=1, keepdims=True))


def chosen(probs: list[TokenProbs]) -> np.ndarray:
    return np.array([math.log(p.chosen.prob) for p in probs])


@on(*TINY)
@pytest.mark.parametrize("kv_unified", [False, True], ids=["split", "unified"])
def test_they_are_those_of_libllama_alone(model, kv_unified):
    with LlamaHarness(model, n_parallel=2, kv_unified=kv_unified) as bench:
        prompt = bench.prompt(75)
        others = [task(7, bench.prompt(40, seed=1)), task(8, bench.prompt(50, seed=2))]
        bench.run(others[0], task(0, prompt, n_prompt_probs=3, cache_prompt=False), others[1])
        probs = reported(bench, 0)
    rows = log_softmax(model, prompt)
    assert [p.chosen.id for p in probs] == prompt[1:]
    assert np.allclose(chosen(probs), rows[np.arange(74), prompt[1:]], rtol=0.01, atol=0.02)
    for i, p in enumerate(probs):
        top = [each.prob for each in p.top]
        assert top == sorted(top, reverse=True)
        assert math.isclose(math.log(top[0]), rows[i].max(), rel_tol=0.01, abs_tol=0.02)
        assert all(abs(math.log(each.prob) - rows[i, each.id]) < 0.05 for each in p.top)


@on("default")
def test_of_quantized_weights_too_but_for_rounding(model):
    """libllama's own results differ as much between one batch and tokens one by one."""
    with LlamaHarness(model) as bench:
        prompt = bench.backend.vocab.tokenize("The capital of France is Paris. The sky is blue.", True, False)
        bench.run(task(0, prompt, n_prompt_probs=1, cache_prompt=False, n_predict=0))
        probs = reported(bench, 0)
    known = log_softmax(model, prompt)[np.arange(len(prompt) - 1), prompt[1:]]
    assert np.abs(chosen(probs) - known).max() < 0.6
    assert abs((chosen(probs) - known).mean()) < 0.1
    assert np.ptp(known) > 5


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
    pairs = zip(shorter, longer[:39], strict=True)
    assert all(math.isclose(a.chosen.prob, b.chosen.prob, rel_tol=1e-3) for a, b in pairs)
