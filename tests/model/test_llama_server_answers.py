"""Greedy and seeded answers are those that a real llama-server gave on the same file with the same fields.

Tokens depend on the last bits of logits, which every CPU computes differently. So they are drawn from
recorded logits, with which the logits of this CPU are compared.
"""

from __future__ import annotations

import math
from contextlib import closing

import numpy as np
import pytest

from corral.core.params import SamplingParams
from corral.core.result import PromptProbs
from corral.llama.candidates import Candidates
from corral.llama.model import Model
from corral.llama.sampler import Sampler
from tests.model.llama_harness import LlamaHarness, task
from tests.model.raw import log_softmax, rounding
from tests.tools.llama_server_logits import read_answers, read_logits

RECORDED = read_answers()
PROMPT = RECORDED["prompt"]


@pytest.fixture
def path(models):
    return models / f"{RECORDED['model']}.gguf"


@pytest.fixture
def vocab(path):
    with closing(Model.open(str(path), vocab_only=True)) as model:
        yield model.vocab


@pytest.mark.parametrize(
    ("answer", "logits"),
    list(zip(RECORDED["answers"], read_logits(), strict=True)),
    ids=[str(answer["params"]) for answer in RECORDED["answers"]],
)
def test_the_same_tokens_as_llama_server(vocab, answer, logits):
    ends = [(token, -math.inf) for token in range(vocab.n_tokens) if vocab.is_eog(token)]
    params = SamplingParams(**answer["params"], logit_bias=tuple(ends))
    with closing(Sampler(vocab, Candidates(vocab.n_tokens), params, PROMPT, 512)) as sampler:
        assert [sampler.sample(row, i)[0] for i, row in enumerate(logits)] == answer["tokens"]


def test_the_logits_are_those_of_llama_server_but_for_rounding(path):
    answer, logits = RECORDED["answers"][0]["tokens"], read_logits()[0]
    with LlamaHarness(path) as bench:
        tokens = [*PROMPT, *answer]
        bench.run(task(0, tokens, n_prompt_probs=0, cache_prompt=False, n_predict=0))
        probs = [probs for event in bench.of(0, PromptProbs) for probs in event.probs][len(PROMPT) - 1 :]
    recorded = log_softmax(logits)[np.arange(len(answer)), answer]
    ours = [math.log(each.chosen.prob) for each in probs]
    assert np.abs(ours - recorded).max() < rounding(path, tokens)
