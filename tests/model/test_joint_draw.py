"""Streams whose tokens are drawn together get the tokens that each of them would get alone."""

from __future__ import annotations

from contextlib import ExitStack, closing

import numpy as np
import pytest

from corral.cli.default_model import find_default_model
from corral.core.errors import NonFiniteLogits
from corral.core.params import DEFAULT_SAMPLERS, SamplingParams
from corral.llama import library
from corral.llama.candidates import Candidates
from corral.llama.joint_draw import JointDraw
from corral.llama.model import Model
from corral.llama.native_draw import NativeDraw
from corral.llama.sampler import Sampler

N_STEPS = 40
ADAPTIVE = (*DEFAULT_SAMPLERS, "adaptive_p")
ALL = [
    SamplingParams(seed=1),
    SamplingParams(seed=2, temperature=1.5, top_k=100, top_p=1.0, min_p=0.0),
    SamplingParams(seed=3, repeat_penalty=1.3, presence_penalty=0.5),
    SamplingParams(seed=4, logit_bias=((5, 30.0), (6, -np.inf))),
    SamplingParams(seed=5, top_k=1),
    SamplingParams(seed=6, temperature=0.0),
    SamplingParams(seed=7, top_k=0, top_p=0.99, min_p=0.0),
    SamplingParams(seed=8, mirostat=2),
    SamplingParams(seed=9, xtc_probability=0.5, xtc_threshold=0.1),
    SamplingParams(seed=10, samplers=ADAPTIVE, adaptive_target=0.4),
    SamplingParams(seed=11, n_probs=2),
    SamplingParams(seed=12, dry_multiplier=0.8),
]


def logits_of(index, n_vocab):
    """Sometimes nearly certain, sometimes flat."""
    rng = np.random.default_rng(index)
    return rng.normal(0, rng.choice([0.5, 2, 4, 12]), n_vocab).astype(np.float32)


@pytest.fixture(scope="module")
def vocab():
    library.start(False)
    with closing(Model.open(str(find_default_model()), vocab_only=True)) as model:
        yield model.vocab


@pytest.fixture(params=["numpy", "one thread", "threads"])
def open_draw(request, vocab):
    """Open what draws for `n` streams: libllama's function, or what a libllama without our patch has."""
    if request.param == "numpy":
        return JointDraw
    return lambda n: NativeDraw(n, vocab.n_tokens, 4 if request.param == "threads" else 1)


@pytest.fixture
def open_all(vocab):
    with ExitStack() as stack:
        candidates = Candidates(vocab.n_tokens)

        def open_all():
            made = [Sampler(vocab, candidates, params, (1, 2, 3), 4096) for params in ALL]
            return [stack.enter_context(closing(sampler)) for sampler in made]

        yield open_all


def test_together_as_alone(vocab, open_all, open_draw):
    together, alone, joint = open_all(), open_all(), open_draw(len(ALL))
    for index in range(N_STEPS):
        rows = [logits_of(100 * index + i, vocab.n_tokens) for i in range(len(ALL))]
        expected = [sampler.sample(row.copy(), index)[0] for sampler, row in zip(alone, rows, strict=True)]
        assert joint.sample(together, rows, [index] * len(ALL)) == expected


def test_streams_may_be_at_different_places(vocab, open_all, open_draw):
    together, alone, joint = open_all()[:4], open_all()[:4], open_draw(4)
    row = logits_of(1, vocab.n_tokens)
    expected = [sampler.sample(row.copy(), 7 * i)[0] for i, sampler in enumerate(alone)]
    assert joint.sample(together, [row.copy() for _ in alone], [0, 7, 14, 21]) == expected


@pytest.mark.parametrize("n", [1, 4])
def test_a_stream_without_a_token_disturbs_no_other(vocab, open_all, open_draw, n):
    together, alone, joint = open_all()[:n], open_all()[:n], open_draw(n)
    rows = [logits_of(i, vocab.n_tokens) for i in range(n)]
    rows[0] = np.full(vocab.n_tokens, np.nan, np.float32)
    error, *tokens = joint.sample(together, rows, [0] * n)
    assert isinstance(error, NonFiniteLogits)
    assert tokens == [sampler.sample(row, 0)[0] for sampler, row in zip(alone[1:], rows[1:], strict=True)]


def test_without_any_finite_logit_the_first_candidate_is_drawn_as_alone(vocab, open_all, open_draw):
    together, alone, joint = open_all()[:4], open_all()[:4], open_draw(4)
    rows = [np.full(vocab.n_tokens, -np.inf, np.float32) for _ in alone]
    expected = [sampler.sample(row.copy(), 0)[0] for sampler, row in zip(alone, rows, strict=True)]
    assert joint.sample(together, rows, [0] * 4) == expected
