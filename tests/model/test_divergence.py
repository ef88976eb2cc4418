"""How far models are apart, against plain numpy in double precision."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from corral.cli.default_model import find_default_model
from corral.core.errors import CorralError, NonFiniteLogits
from corral.core.modifier import Override
from corral.core.settings import EngineSettings
from corral.llama.model import Model
from corral.tuning import divergence as module
from corral.tuning.divergence import (
    WINDOW,
    cut_windows,
    measure_divergences,
    sample_text,
)
from tests.model.decoder_reference import read_decoder, token_rows
from tests.tools.quantize import to_q4_0, to_q8_0

HALF = WINDOW // 2
# A tiny model has a token for hardly more than a letter: some three windows.
TEXT = sample_text()[:2700]


def measure(a, b, text=TEXT, **how):
    """Of B from A."""
    (found,) = measure_divergences([str(a), str(b)], [(0, 1)], text, lambda _: None, **how)
    return found


def compare_settings(a, b):
    (found,) = module.compare_settings([a, b], [(0, 1)], TEXT, lambda _: None)
    return found


def exact(path, **how):
    """Settings under which libllama differs from numpy by little more than the rounding of floats."""
    plain = {"n_threads": 1, "flash_attn": "off", "cache_type_k": "f32", "cache_type_v": "f32"}
    return EngineSettings(model=str(path), **{**plain, **how})


@functools.cache
def vocabulary(path):
    return Model.open(str(path), vocab_only=True).vocab


def log_probabilities(path, before=()):
    """A row for each scored position, and what really comes there."""
    tokens = vocabulary(path).tokenize(TEXT, add_special=False, parse_special=False)
    decoder, n_new = read_decoder(path), WINDOW - len(before)
    rows, targets = [], []
    for start in range(0, (len(tokens) - 1) // n_new * n_new, n_new):
        window = [*before, *tokens[start : start + n_new]]
        logits = token_rows(decoder, window) @ decoder.weights["output.weight"].T.astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        rows.append((logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))[HALF:])
        targets += [*window, tokens[start + n_new]][HALF + 1 :]
    return np.concatenate(rows), np.array(targets)


def test_it_is_what_numpy_says(models, heads):
    a, b = models / "llama-bpe.gguf", heads / "heads-32.gguf"
    found = compare_settings(exact(a), exact(b))
    (log_a, targets), (log_b, _) = log_probabilities(a), log_probabilities(b)
    kl = (np.exp(log_a) * (log_a - log_b)).sum(axis=1)
    same = log_a.argmax(axis=1) == log_b.argmax(axis=1)
    n, at = len(targets), np.arange(len(targets))
    assert found.n_tokens == n >= 3 * HALF
    assert found.perplexity_a == pytest.approx(np.exp(-log_a[at, targets].mean()), rel=1e-3)
    assert found.perplexity_b == pytest.approx(np.exp(-log_b[at, targets].mean()), rel=1e-3)
    assert found.mean_kl == pytest.approx(kl.mean(), rel=1e-3)
    assert found.mean_kl_error == pytest.approx(kl.std(ddof=1) / np.sqrt(n), rel=1e-3)
    assert found.kl_median == pytest.approx(np.median(kl), rel=1e-3)
    assert found.kl_p90 == pytest.approx(np.quantile(kl, 0.9), rel=1e-3)
    assert found.kl_p99 == pytest.approx(np.quantile(kl, 0.99), rel=1e-3)
    assert found.max_kl == pytest.approx(kl.max(), rel=1e-3)
    assert found.top1 == pytest.approx(same.mean(), abs=2 / n)
    assert found.top1_error == pytest.approx(same.std(ddof=1) / np.sqrt(n), rel=0.1, abs=1e-3)


def test_windows_begin_as_the_model_wants_it(models):
    path = models / "llama-spm.gguf"
    assert vocabulary(path).adds_bos
    found = compare_settings(exact(path), exact(path))
    log, targets = log_probabilities(path, before=[vocabulary(path).bos])
    expected = np.exp(-log[np.arange(len(targets)), targets].mean())
    assert found.n_tokens == len(targets)
    assert found.perplexity_a == pytest.approx(expected, rel=1e-3)


def test_every_token_of_a_text_is_read_once():
    windows = cut_windows(np.arange(100, 145, dtype=np.int32), 16, before=[1, 2])
    assert [len(window.tokens) for window in windows] == [16, 16, 16]
    assert all(list(window.tokens[:2]) == [1, 2] for window in windows)
    assert [token for window in windows for token in window.tokens[2:]] == list(range(100, 142))
    assert all(list(window.targets[:-1]) == list(window.tokens[9:]) for window in windows)
    assert [window.targets[-1] for window in windows] == [114, 128, 142]


@pytest.mark.parametrize("name", ["llama-bpe", "llama-spm", "mamba", "gemma-swa"])
def test_a_model_is_nowhere_apart_from_itself(models, name):
    found = measure(models / f"{name}.gguf", models / f"{name}.gguf")
    assert found.n_tokens % HALF == 0
    assert found.perplexity_a == found.perplexity_b
    assert (found.mean_kl, found.max_kl, found.top1) == (0.0, 0.0, 1.0)
    assert (found.mean_kl_error, found.top1_error) == (0.0, 0.0)


def test_the_other_way_round(models, deep):
    forth, back = measure(models / "llama-bpe.gguf", deep), measure(deep, models / "llama-bpe.gguf")
    assert forth.n_tokens == back.n_tokens
    assert (forth.perplexity_a, forth.perplexity_b) == (back.perplexity_b, back.perplexity_a)
    assert (forth.top1, forth.top1_error) == (back.top1, back.top1_error)
    assert forth.mean_kl != back.mean_kl
    for found in (forth, back):
        assert 0 < found.kl_median < found.kl_p90 < found.kl_p99 < found.max_kl


def test_pairs_are_measured_as_if_alone(models, deep, heads):
    paths = [str(models / "llama-bpe.gguf"), str(deep), str(heads / "heads-32.gguf")]
    pairs = [(0, 1), (0, 2), (1, 2), (2, 2)]
    found = measure_divergences(paths, pairs, TEXT, lambda _: None)
    assert found == [measure(paths[a], paths[b]) for a, b in pairs]


def test_other_architectures_with_the_same_vocabulary(models):
    found = measure(models / "mamba.gguf", models / "gemma-swa.gguf")
    assert found.mean_kl > 0.1
    assert found.top1 < 0.5


def test_rows_are_scored_a_few_at_a_time(models, deep, monkeypatch):
    whole = measure(models / "llama-bpe.gguf", deep)
    monkeypatch.setattr(module, "_MAX_LOGITS", 24 * vocabulary(deep).n_tokens)
    parts = measure(models / "llama-bpe.gguf", deep)
    assert parts.n_tokens == whole.n_tokens
    assert parts.mean_kl == pytest.approx(whole.mean_kl, rel=1e-2)
    assert parts.perplexity_b == pytest.approx(whole.perplexity_b, rel=1e-2)


def test_a_model_that_knows_fewer_tokens_at_once(models):
    path = str(models / "llama-bpe.gguf")
    small = exact(path, overrides=(Override("llama.context_length", 64),))
    n = len(vocabulary(path).tokenize(TEXT, False, False))
    found = compare_settings(exact(path), small)
    assert found.n_tokens == (n - 1) // 64 * 32
    assert found.mean_kl == 0.0


def test_a_model_that_knows_hardly_any(models):
    small = exact(models / "llama-bpe.gguf", overrides=(Override("llama.context_length", 8),))
    with pytest.raises(CorralError, match="8 tokens"):
        compare_settings(small, small)


def test_what_a_smaller_cache_costs(heads):
    path = heads / "heads-64.gguf"
    small = exact(path, flash_attn="auto", cache_type_k="q8_0", cache_type_v="q8_0")
    found = compare_settings(exact(path), small)
    assert 0 < found.mean_kl < 0.01
    assert found.top1 > 0.9


def test_progress_is_told(models):
    path, told = str(models / "llama-bpe.gguf"), []
    (found,) = measure_divergences([path, path], [(0, 1)], TEXT, told.append, n_threads=1)
    assert len(told) == found.n_tokens // HALF
    assert told == sorted(set(told))
    assert told[-1] == 1.0


def test_vocabularies_of_different_sizes(models):
    with pytest.raises(CorralError, match=r"llama-bpe\.gguf'.*\d+ tokens.*spm"):
        measure(models / "llama-bpe.gguf", models / "llama-spm.gguf")


def test_vocabularies_with_other_tokens(models, modifiers):
    a, b = models / "llama-bpe.gguf", modifiers / "draft-other-vocab.gguf"
    with pytest.raises(CorralError, match="different vocabularies: token ") as error:
        measure(a, b)
    token = int(error.value.message.partition("token ")[2].split()[0])
    texts = [vocabulary(path).detokenize([token]) for path in (a, b)]
    assert f"is {texts[0]!r} in '{a}', {texts[1]!r} in '{b}'" in error.value.message
    assert texts[0] != texts[1]


@pytest.mark.parametrize("name", ["bert-embed", "t5-encoder"])
def test_encoders_are_refused(encoders, name):
    path = encoders / f"{name}.gguf"
    with pytest.raises(CorralError, match="cannot be compared"):
        measure(path, path)


def test_a_text_that_is_too_short(models):
    with pytest.raises(CorralError, match=r"\d+ tokens.*513"):
        measure(models / "llama-bpe.gguf", models / "llama-bpe.gguf", "Hello.")


def test_tokens_that_are_impossible():
    none = module._log_softmax(np.array([1.0, 2.0, -np.inf], np.float32))
    some = module._log_softmax(np.array([1.0, 2.0, 0.0], np.float32))
    assert module._score_position(none, none, 0).kl == 0.0
    p = np.exp([1.0, 2.0]) / np.exp([1.0, 2.0]).sum()
    q = np.exp([1.0, 2.0, 0.0]) / np.exp([1.0, 2.0, 0.0]).sum()
    assert module._score_position(none, some, 0).kl == pytest.approx((p * np.log(p / q[:2])).sum())
    assert module._score_position(some, none, 0).kl == np.inf


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_logits_that_are_not_numbers(wrong):
    with pytest.raises(NonFiniteLogits):
        module._log_softmax(np.array([0.0, wrong, 1.0], np.float32))


def test_large_logits_do_not_overflow():
    row = np.array([1e4, 0.0, -1e4], np.float32)
    score = module._score_position(module._log_softmax(row), module._log_softmax(row + 5), 0)
    assert score == (0.0, 0.0, 0.0, True)


@pytest.mark.slow
def test_encodings_of_a_real_model(models):
    default = find_default_model()
    tokens = vocabulary(default).tokenize(sample_text(), False, False)
    text = vocabulary(default).detokenize(tokens[: 2 * WINDOW + 8])
    near = measure(default, to_q8_0(default, models / "default-q8_0.gguf"), text)
    far = measure(default, to_q4_0(default, models / "default-q4_0.gguf"), text)
    assert near.n_tokens == far.n_tokens == 2 * HALF
    assert 2 < near.perplexity_a < 40
    assert near.perplexity_b == pytest.approx(near.perplexity_a, rel=0.02)
    assert 0 < near.mean_kl < 0.01
    assert near.top1 > 0.93
    assert far.mean_kl > 0.05
    assert far.top1 < 0.9


def test_the_text_is_long_enough_for_a_real_model():
    """And made for it: seven windows, and hardly anything is left over."""
    n = len(vocabulary(find_default_model()).tokenize(sample_text(), False, False))
    assert (n - 1) // WINDOW == 7
    assert n % WINDOW < 128
