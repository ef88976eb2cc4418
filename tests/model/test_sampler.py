"""Every sampler against its definition, on the default model's vocabulary and made-up logits."""

from __future__ import annotations

import functools
import math
from collections import Counter
from contextlib import closing

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.cli.default_model import find_default_model
from corral.core.draw import Twister
from corral.core.errors import CorralError
from corral.core.params import SamplingParams
from corral.llama import library
from corral.llama.candidates import Candidates
from corral.llama.model import Model
from corral.llama.sampler import Sampler
from corral.llama.vocab import NativeVocab
from tests.model.sampler_reference import Pool, Reference

NEUTRAL = SamplingParams(seed=11, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
N_CTX = 24
EOS, COLON, NEWLINE, AND, AN = 2, 42, 198, 284, 354
WORDS = range(2000, 2200)
A, B, C, D, E, F = FAVOURITES = WORDS[:6]
PROMPT = (E, C, A, B, F, D, A, B, C, A, NEWLINE, A, B, C, D, E, COLON, A, B, C, NEWLINE, D, A, B, C)
LOOP = (A, B, C, D) * 4
FORBIDDEN = -math.inf

few_examples = settings(max_examples=40, deadline=None, derandomize=True, database=None)


class Rig:
    """Opens samplers and references on one vocabulary, and makes up logits for them."""

    def __init__(self, vocab):
        self.vocab = vocab
        self._candidates = Candidates(vocab.n_tokens)

    def sampler(self, params, prompt=()):
        return closing(Sampler(self.vocab, self._candidates, params, prompt, N_CTX))

    def reference(self, params, prompt=()):
        return Reference(self.vocab, params, prompt, N_CTX)

    @functools.cache  # noqa: B019
    def logits(self, seed):
        """A few favourites, some words they compete with, and a long tail."""
        rng = np.random.default_rng(seed)
        logits = rng.normal(-20, 1, self.vocab.n_tokens)
        logits[WORDS] = rng.normal(0, 2, len(WORDS))
        logits[[NEWLINE, COLON, *FAVOURITES]] = rng.normal(4, 1, 2 + len(FAVOURITES))
        return logits.astype(np.float32)


@pytest.fixture(scope="session")
def rig():
    library.start(False)
    model = Model.open(str(find_default_model()), vocab_only=True)
    yield Rig(model.vocab)
    model.close()


def with_params(**changes):
    return msgspec.structs.replace(NEUTRAL, **changes)


def cases(**grid):
    """Parametrize by every value of a parameter, or by every dict of parameters."""
    rows = [v if isinstance(v, dict) else {name: v} for name, values in grid.items() for v in values]
    return pytest.mark.parametrize("changes", rows, ids=str)


def narrow(sampler, logits, index=0):
    """Who is left, in the sampler's order, and the probability of every token of the vocabulary."""
    ids, weights = sampler._narrow(logits, index)
    everyone = np.zeros(len(logits))
    everyone[ids] = weights / weights.sum()
    return ids.copy(), everyone


def plain(logits):
    return Pool(np.arange(len(logits)), logits.astype(np.float64)).probs


def assert_same(actual, expected):
    tiny = 1e-37  # below what a float can hold
    np.testing.assert_array_equal(np.flatnonzero(actual > tiny), np.flatnonzero(expected > tiny))
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-12)


def follow(rig, params, prompt, n_tokens):
    """Draw some tokens, each as defined; tells whether the samplers ever made a difference."""
    reference, made_difference = rig.reference(params, prompt), False
    draws, n_draws = Twister(params.seed), 0
    with rig.sampler(params, prompt) as sampler:
        for index in range(n_tokens):
            logits = rig.logits(index)
            expected = reference.narrow(logits, index)
            ids, probs = narrow(sampler, logits, index)
            assert_same(probs, expected)
            made_difference = made_difference or not np.allclose(expected, plain(logits), rtol=1e-3)
            token, _ = sampler.sample(logits, index)
            assert token == ids[np.searchsorted(np.cumsum(probs[ids]), draws.double(n_draws))]
            n_draws += len(ids) > 1 or not params.mirostat
            reference.accept(token)
            if params.mirostat:
                assert sampler._mirostat.mu == pytest.approx(reference.mu, rel=1e-4)
    return made_difference


@pytest.mark.one_in(3)
@cases(
    temperature=[0.3, 2.5, {"temperature": 0.0, "logit_bias": ((A, 9.0),)}],
    dynatemp=[
        {"dynatemp_range": 0.5},
        {"dynatemp_range": 0.7, "dynatemp_exponent": 2.5},
        {"dynatemp_range": 0.4, "dynatemp_exponent": 0.3, "temperature": 0.2},
        {"dynatemp_range": 0.4, "top_k": 1},
    ],
    top_k=[1, 7, 150],
    top_p=[0.0, 0.3, 0.9, 0.99],
    min_p=[0.02, 0.4, 1.0],
    typical_p=[0.0, 0.2, 0.7, 0.95],
    tfs_z=[0.0, 0.5, 0.95],
    top_n_sigma=[0.5, 1.0, 2.0],
    xtc=[
        {"xtc_probability": 1.0, "xtc_threshold": 0.03},
        {"xtc_probability": 0.5, "xtc_threshold": 0.03},
        {"xtc_probability": 0.5, "xtc_threshold": 0.03, "top_k": 20, "logit_bias": ((A, 1.0),)},
        {"xtc_probability": 1.0, "xtc_threshold": 0.1, "top_k": 8, "min_keep": 5},
        {"xtc_probability": 1.0, "xtc_threshold": 0.1, "top_k": 8, "min_keep": 8},
    ],
    logit_bias=[((A, 3.5), (B, -2.0), (A, 1.0)), ((C, FORBIDDEN), (0, FORBIDDEN), (D, 1.0))],
    min_keep=[
        {"min_keep": 9, **cut}
        for cut in ({"top_k": 3}, {"top_p": 0.1}, {"min_p": 0.9}, {"typical_p": 0.1}, {"tfs_z": 0.1})
    ],
)
def test_narrows_as_defined(rig, changes):
    assert follow(rig, with_params(**changes), (), 3)


@pytest.mark.one_in(3)
@cases(
    repeat_penalty=[1.3, 0.8],
    presence_penalty=[0.9, -0.5],
    frequency_penalty=[0.4, -0.2],
    repeat_last_n=[{"repeat_last_n": n, "frequency_penalty": 0.3} for n in (1, 5, -1, 1000)],
    penalize_nl=[{"penalize_nl": False, "repeat_penalty": 1.5, "presence_penalty": 0.3}],
    penalty_prompt=[{"penalty_prompt": p, "repeat_penalty": 1.5} for p in ((), (D, D, NEWLINE))],
    temperature=[{"temperature": 0.0, "repeat_penalty": 1.5}],
    dry_multiplier=[0.8, -0.5],
    dry_base=[{"dry_base": base, "dry_multiplier": 0.6} for base in (1.0, 3.0)],
    dry_allowed_length=[{"dry_allowed_length": n, "dry_multiplier": 0.6} for n in (0, 1, 3)],
    dry_penalty_last_n=[
        {"dry_penalty_last_n": n, "dry_multiplier": 0.6, "dry_sequence_breakers": ()} for n in (9, 15, -1)
    ],
    dry_sequence_breakers=[
        {"dry_sequence_breakers": breakers, "dry_multiplier": 0.6, "dry_allowed_length": 1}
        for breakers in ((), (":", "iple"), ("u", "ales temper"))
    ],
)
@pytest.mark.parametrize("prompt", [PROMPT, LOOP], ids=["prompt", "loop"])
def test_heeds_what_was_said_as_defined(rig, changes, prompt):
    assert follow(rig, with_params(**changes), prompt, 4)


def test_a_breaker_may_span_tokens(rig):
    """The cases above are worth something only if these tokens have these texts."""
    assert b"".join(rig.vocab.piece(t) for t in (A, B, C, D)) == b" temper enoughales likely"
    params = with_params(dry_multiplier=1.0, dry_allowed_length=2)
    spanning = msgspec.structs.replace(params, dry_sequence_breakers=("ales temper",))
    prompt = (A, B, C, A, B, C, A)
    with rig.sampler(params, prompt) as free, rig.sampler(spanning, prompt) as broken:
        assert narrow(free, rig.logits(0))[1][B] < narrow(broken, rig.logits(0))[1][B]


@cases(
    samplers=[
        {"samplers": order, "temperature": 0.5, "top_p": 0.8, "top_k": 12, "repeat_penalty": 1.4}
        for order in (
            (), ("temperature", "top_p"), ("top_p", "temperature"), ("top_p", "top_p"),
            ("temperature", "temperature"), ("penalties", "penalties"), ("top_k", "penalties", "top_p"),
        )
    ],
    two_coins=[{"samplers": ("xtc", "xtc"), "xtc_probability": 0.5, "xtc_threshold": 0.05}],
    infill=[
        {"samplers": ("top_k", "infill"), "top_k": 30, "logit_bias": bias}
        for bias in ((), ((A, 9.0), (B, 8.5), (C, 7.0)), ((AN, 28.1), (AND, 28.0)), ((EOS, 24.0), (0, 25.0)))
    ],
    together=[
        {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
        {"temperature": 0.7, "top_k": 30, "tfs_z": 0.97, "typical_p": 0.9, "top_p": 0.9, "min_p": 0.02,
         "dynatemp_range": 0.3, "xtc_probability": 0.5, "xtc_threshold": 0.08, "repeat_penalty": 1.2,
         "presence_penalty": 0.2, "dry_multiplier": 0.5, "logit_bias": ((A, 1.5), (B, FORBIDDEN))},
        {"temperature": 0.9, "top_n_sigma": 1.5, "top_k": 20, "top_p": 0.9, "frequency_penalty": 0.3,
         "min_keep": 3, "penalize_nl": False},
    ],
)  # fmt: skip
def test_samplers_act_in_the_order_given(rig, changes):
    assert follow(rig, with_params(**changes), PROMPT, 6)


@cases(
    one=[{"mirostat": 1, "mirostat_tau": 1.5}, {"mirostat": 1, "temperature": 0.6, "presence_penalty": 0.5}],
    two=[{"mirostat": 2, "mirostat_tau": 1.5}, {"mirostat": 2, "logit_bias": ((A, FORBIDDEN),), "top_k": 2}],
)
def test_mirostat_steers_as_defined(rig, changes):
    assert follow(rig, with_params(mirostat_eta=0.2, **changes), PROMPT, 30)


@cases(
    repeat_last_n=[{"repeat_last_n": 0, "repeat_penalty": 2.0}],
    dry_penalty_last_n=[{"dry_penalty_last_n": 0, "dry_multiplier": 2.0}],
    xtc=[{"xtc_probability": 1.0, "xtc_threshold": 0.51}, {"xtc_probability": 0.0, "xtc_threshold": 0.0}],
    top_n_sigma=[0.0, -1.0],
    top_k=[10**6],
    min_keep=[50],
    samplers=[{"samplers": (), "top_k": 1, "min_p": 0.9, "temperature": 0.1, "dry_multiplier": 3.0}],
)
def test_what_is_off_changes_nothing(rig, changes):
    assert not follow(rig, with_params(**changes), PROMPT, 3)


@cases(
    zero_times_log_of_zero=[
        {"typical_p": 0.5, "logit_bias": ((C, FORBIDDEN),)},
        {"typical_p": 0.5, "top_n_sigma": 1.0, "top_k": 40},
    ],
    greedy_without_temperature=[{"samplers": (), "temperature": 0.0}],
)
def test_extremes_are_as_defined(rig, changes):
    follow(rig, with_params(**changes), LOOP, 3)


@cases(neutral=[{}], narrowing=[{"top_k": 5, "top_p": 0.5, "min_p": 0.1, "tfs_z": 0.5}])
@pytest.mark.parametrize("temperature", [0.0, -1.0, 1e-38])
def test_without_temperature_the_best_wins(rig, temperature, changes):
    with rig.sampler(with_params(temperature=temperature, **changes), PROMPT) as sampler:
        drawn = [sampler.sample(rig.logits(i), i) for i in range(10)]
    assert drawn == [(int(rig.logits(i).argmax()), None) for i in range(10)]


@cases(
    random=[{}, {"mirostat": 1}, {"mirostat": 2}, {"xtc_probability": 0.5, "xtc_threshold": 0.01}],
    remembering=[{"repeat_penalty": 1.5}, {"dry_multiplier": 0.8}],
)
@pytest.mark.parametrize("n_kept", [0, 3, 9])
def test_tokens_that_are_taken_back_are_drawn_again(rig, changes, n_kept):
    with rig.sampler(with_params(temperature=1.5, **changes), PROMPT) as sampler:
        drawn = [sampler.sample(rig.logits(i), i)[0] for i in range(10)]
        assert sampler.rewind(n_kept)
        again = [sampler.sample(rig.logits(i), i)[0] for i in range(n_kept, 10)]
    assert again == drawn[n_kept:]


def test_what_the_model_forbids_is_never_left(rig, monkeypatch):
    monkeypatch.setattr(NativeVocab, "suppressed", [A, NEWLINE])
    with rig.sampler(with_params(logit_bias=((A, 5.0),))) as sampler:
        _, probs = narrow(sampler, rig.logits(0))
    assert np.flatnonzero(probs == 0).tolist() == [NEWLINE, A]


@few_examples
@given(
    cut=st.one_of(
        st.fixed_dictionaries({"top_k": st.integers(1, 300)}),
        *(st.fixed_dictionaries({name: st.floats(0, 0.999)}) for name in ("top_p", "typical_p", "tfs_z")),
        st.fixed_dictionaries({"min_p": st.floats(0.001, 1)}),
        st.fixed_dictionaries({"xtc_probability": st.just(1.0), "xtc_threshold": st.floats(0, 0.5)}),
    ),
    min_keep=st.integers(0, 30),
)
def test_narrowing_only_removes(rig, cut, min_keep):
    everything = plain(rig.logits(2))
    with rig.sampler(with_params(min_keep=min_keep, **cut)) as sampler:
        _, probs = narrow(sampler, rig.logits(2))
    kept = probs > 0
    assert kept.sum() >= max(min_keep, 1)
    np.testing.assert_allclose(probs[kept], everything[kept] / everything[kept].sum(), rtol=1e-4)
    assert {"typical_p", "xtc_threshold"} & set(cut) or everything[kept].min() >= everything[~kept].max()


@few_examples
@given(seed=st.integers(0, 2**64 - 1), index=st.integers(0, 5000))
def test_a_draw_belongs_to_seed_and_index_and_obeys(rig, seed, index):
    bias = tuple((token, FORBIDDEN) for token in FAVOURITES)
    with rig.sampler(with_params(seed=seed, top_k=20, logit_bias=bias)) as sampler:
        drawn = [sampler.sample(rig.logits(3), i) for i in (index, index + 1, index)]
    assert drawn[0] == drawn[2]
    assert not {token for token, _ in drawn} & set(FAVOURITES)


@pytest.mark.parametrize("varied", ["index", "seed"])
def test_draws_are_distributed_as_the_probabilities(rig, varied):
    """Chi-square with 7 degrees of freedom: one honest sampler in a thousand exceeds 24.3."""
    n_seeds, n_indexes = (1000, 1) if varied == "seed" else (1, 2000)
    counts = Counter()
    for seed in range(n_seeds):
        with rig.sampler(with_params(top_k=8, seed=seed)) as sampler:
            counts.update(sampler.sample(rig.logits(5), index)[0] for index in range(n_indexes))
    expected = rig.reference(with_params(top_k=8)).narrow(rig.logits(5), 0) * n_seeds * n_indexes
    likely = np.flatnonzero(expected)
    assert set(counts) <= set(likely)
    assert sum((counts[t] - expected[t]) ** 2 / expected[t] for t in likely) < 24.3


@cases(temperature=[0.0, 1.0], top_k=[3, 20], logit_bias=[((A, 9.0),), ((A, FORBIDDEN),)])
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_probabilities_before_and_after_sampling(rig, is_after, changes):
    logits = rig.logits(1)
    params = with_params(n_probs=5, post_sampling_probs=is_after, **changes)
    with rig.sampler(params) as sampler:
        token, report = sampler.sample(logits, 0)
    probs = rig.reference(params).narrow(logits, 0) if is_after else plain(logits)
    best = [t for t in np.argsort(-probs)[:5] if probs[t] > 0]
    assert (report.chosen.id, report.chosen.prob) == (token, pytest.approx(probs[token], rel=1e-4))
    assert [entry.id for entry in report.top] == best
    assert [entry.prob for entry in report.top] == pytest.approx(probs[best], rel=1e-4)


@pytest.mark.parametrize(
    ("has_memory", "changes"),
    [
        (False, {}),
        (True, {"xtc_probability": 0.5, "xtc_threshold": 0.05}),
        (True, {"repeat_penalty": 1.2, "frequency_penalty": 0.4, "penalize_nl": False}),
        (True, {"dry_multiplier": 0.8, "dry_allowed_length": 1}),
        (True, {"mirostat": 1, "mirostat_tau": 3.0}),
        (True, {"mirostat": 2, "mirostat_tau": 3.0}),
    ],
    ids=str,
)
def test_forced_tokens_leave_the_state_of_drawn_ones(rig, has_memory, changes):
    params = with_params(n_probs=20, post_sampling_probs=True, **changes)
    with rig.sampler(params, LOOP) as drawing, rig.sampler(params, LOOP) as resumed:
        drawn = [drawing.sample(rig.logits(i), i) for i in range(30)]
        for i, (token, _) in enumerate(drawn[:15]):
            resumed.force(rig.logits(i), i, token)
        assert [resumed.sample(rig.logits(i), i) for i in range(15, 30)] == drawn[15:]
    with rig.sampler(params, LOOP) as forgetful:
        assert (forgetful.sample(rig.logits(15), 15) != drawn[15]) == has_memory


@cases(neutral=[{}], greedy=[{"temperature": 0.0}], mirostat=[{"mirostat": 2}])
@pytest.mark.parametrize("where", [slice(0, 1), slice(-1, None), slice(None)], ids=["first", "last", "all"])
def test_logits_that_are_not_numbers_are_refused(rig, where, changes):
    logits = rig.logits(0).copy()
    logits[where] = np.nan
    with rig.sampler(with_params(**changes)) as sampler, pytest.raises(CorralError, match="not finite"):
        sampler.sample(logits, 0)
