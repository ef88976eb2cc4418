"""A seed draws the tokens that llama-server draws: against libllama's own chain on the same logits."""

from __future__ import annotations

import contextlib
import functools
from contextlib import closing

import msgspec
import numpy as np
import pytest

from corral.cli.default_model import find_default_model
from corral.core.params import DEFAULT_SAMPLERS, SamplingParams
from corral.llama import library
from corral.llama.candidates import Candidates
from corral.llama.library import lib
from corral.llama.model import Model
from corral.llama.sampler import Sampler

N_TOKENS = 120
ADAPTIVE = (*DEFAULT_SAMPLERS, "adaptive_p")
SEEDS = (0, 1, 42, 2**32 - 2)


@pytest.fixture(scope="module")
def vocab():
    library.start(False)
    with closing(Model.open(str(find_default_model()), vocab_only=True)) as model:
        yield model.vocab


@functools.cache
def logits_of(index, n_vocab):
    """Sometimes nearly certain, sometimes flat."""
    rng = np.random.default_rng(index)
    logits = rng.normal(0, rng.choice([0.5, 2, 4, 12]), n_vocab).astype(np.float32)
    logits.flags.writeable = False
    return logits


def add_usual(chain, vocab, p):
    """The default samplers, as llama-server's common/sampling.cpp adds them."""
    add = functools.partial(lib.llama_sampler_chain_add, chain)
    add(lib.llama_sampler_init_penalties(vocab.n_tokens, p.repeat_last_n, p.repeat_penalty, 0, 0))
    add(lib.llama_sampler_init_top_n_sigma(p.top_n_sigma))
    add(lib.llama_sampler_init_top_k(p.top_k))
    add(lib.llama_sampler_init_typical(p.typical_p, p.min_keep))
    add(lib.llama_sampler_init_top_p(p.top_p, p.min_keep))
    add(lib.llama_sampler_init_min_p(p.min_p, p.min_keep))
    add(lib.llama_sampler_init_xtc(p.xtc_probability, p.xtc_threshold, p.min_keep, p.seed))
    add(lib.llama_sampler_init_temp_ext(p.temperature, p.dynatemp_range, p.dynatemp_exponent))
    is_adaptive = "adaptive_p" in p.samplers
    target, decay = p.adaptive_target, p.adaptive_decay
    add(
        lib.llama_sampler_init_adaptive_p(target, decay, p.seed)
        if is_adaptive
        else lib.llama_sampler_init_dist(p.seed)
    )


def add_mirostat(chain, vocab, p):
    lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_temp(p.temperature))
    tau, eta = p.mirostat_tau, p.mirostat_eta
    last = (
        lib.llama_sampler_init_mirostat(vocab.n_tokens, p.seed, tau, eta, 100)
        if p.mirostat == 1
        else lib.llama_sampler_init_mirostat_v2(p.seed, tau, eta)
    )
    lib.llama_sampler_chain_add(chain, last)


@contextlib.contextmanager
def opened_chain(vocab, p):
    chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    (add_mirostat if p.mirostat else add_usual)(chain, vocab, p)
    yield chain
    lib.llama_sampler_free(chain)


def native_draws(vocab, p):
    candidates, drawn = Candidates(vocab.n_tokens), []
    with opened_chain(vocab, p) as chain:
        for index in range(N_TOKENS):
            candidates.load(logits_of(index, vocab.n_tokens))
            lib.llama_sampler_apply(chain, candidates.pointer)
            array = candidates.pointer.contents
            drawn.append(array.data[array.selected].id)
            lib.llama_sampler_accept(chain, drawn[-1])
    return drawn


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
        {"top_k": 0, "top_p": 0.8},
        {"typical_p": 0.6},
        {"xtc_probability": 0.5, "xtc_threshold": 0.05},
        {"dynatemp_range": 0.5, "repeat_penalty": 1.3},
        {"top_n_sigma": 1.5, "min_keep": 3},
        {"mirostat": 1, "mirostat_tau": 3.0},
        {"mirostat": 2, "mirostat_tau": 3.0},
        {"samplers": ADAPTIVE, "adaptive_target": 0.3},
        {"samplers": ADAPTIVE, "adaptive_target": 0.7, "adaptive_decay": 0.5, "temperature": 1.5},
        {"samplers": ADAPTIVE},
    ],
    ids=str,
)
def test_a_seed_draws_what_llama_server_draws(vocab, seed, changes):
    params = msgspec.structs.replace(SamplingParams(seed=seed), **changes)
    with closing(Sampler(vocab, Candidates(vocab.n_tokens), params, (), 4096)) as sampler:
        drawn = [sampler.sample(logits_of(i, vocab.n_tokens), i)[0] for i in range(N_TOKENS)]
    assert drawn == native_draws(vocab, params)


def test_adaptive_p_resumes_and_goes_back_anywhere(vocab):
    params = SamplingParams(seed=5, samplers=ADAPTIVE, adaptive_target=0.4)

    def open_sampler():
        return closing(Sampler(vocab, Candidates(vocab.n_tokens), params, (), 4096))

    def draw(sampler, start):
        return [sampler.sample(logits_of(i, vocab.n_tokens), i)[0] for i in range(start, 40)]

    with open_sampler() as sampler:
        drawn = draw(sampler, 0)
        assert sampler.rewind(20)
        assert draw(sampler, 20) == drawn[20:]
    with open_sampler() as sampler:
        for i, token in enumerate(drawn[:20]):
            sampler.force(logits_of(i, vocab.n_tokens), i, token)
        assert draw(sampler, 20) == drawn[20:]
