"""Greedy and seeded answers are those that a real llama-server gave on the same file with the same fields."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from corral.core.params import SamplingParams
from tests.model.llama_harness import LlamaHarness, task

RECORDED = json.loads((Path(__file__).parents[1] / "tools/llama_server_answers.json").read_text())


@pytest.mark.parametrize("recorded", RECORDED["answers"], ids=lambda recorded: str(recorded["params"]))
def test_the_same_tokens_as_llama_server(models, recorded):
    n = len(recorded["tokens"])
    with LlamaHarness(models / f"{RECORDED['model']}.gguf") as harness:
        vocab = harness.backend.vocab
        ends = [(token, -math.inf) for token in range(vocab.n_tokens) if vocab.is_eog(token)]
        sampling = SamplingParams(**recorded["params"], logit_bias=tuple(ends))
        harness.run(task(0, RECORDED["prompt"], n_predict=n, sampling=sampling))
        assert harness.tokens(0) == recorded["tokens"]
