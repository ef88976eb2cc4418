"""Options of a context and overridden metadata on real libllama, beside a decoder in plain numpy."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from corral.core.chunk import Chunk, DecodeStatus
from corral.core.errors import CorralError
from corral.core.modifier import Override, ScaledFile
from corral.core.pooling import Pooling
from corral.core.result import StopType
from corral.core.settings import EngineSettings
from corral.core.task import Verb
from corral.gguf.fingerprint import fingerprint
from corral.llama.context_params import context_params
from corral.llama.encoder import Encoder
from corral.llama.fingerprint import model_fingerprint
from corral.llama.library import lib
from corral.llama.model import Model
from tests.model import decoder_reference as reference
from tests.model.decoder_reference import Yarn
from tests.model.llama_harness import LlamaHarness, task
from tests.model.slot_actions import refuse
from tests.tools import tiny_vectors
from tests.tools.tiny_models import N_CTX

CLOSE = 1e-3
FAR = 0.1  # what a setting changes at least, or the test would show nothing
EXACT: dict[str, Any] = {
    "cache_type_k": "f32",
    "cache_type_v": "f32",
}  # halves would round more than anything else
TOKENS = np.random.default_rng(0).integers(0, 250, 60, np.int32)


def yarn_size(stretch):
    return 1 + 0.1 * math.log(stretch)


# Settings, and what they are in the reference.
LINEAR: dict[str, Any] = {
    "as the model says": ({}, {}),
    "base": ({"rope_freq_base": 500.0}, {"rope_base": 500.0}),
    "scale": ({"rope_scale": 4.0}, {"rope_scale": 0.25}),
    "scale of frequencies": ({"rope_freq_scale": 0.5}, {"rope_scale": 0.5}),
    "the same twice": ({"rope_scale": 3.0, "rope_freq_scale": 0.3333}, {"rope_scale": 0.3333}),
    "shrunk": ({"rope_scale": 0.5}, {"rope_scale": 2.0}),
    "linear": ({"rope_scaling": "linear", "rope_scale": 2.0}, {"rope_scale": 0.5}),
    "none": ({"rope_scaling": "none"}, {}),
    "no scale": ({"rope_scaling": "none", "rope_scale": 1.0}, {}),
    "both": ({"rope_freq_base": 777.0, "rope_scale": 8.0}, {"rope_base": 777.0, "rope_scale": 0.125}),
}
YARN: dict[str, Any] = {
    "yarn": ({"rope_scale": 4.0}, {"rope_scale": 0.25}, Yarn(N_CTX)),
    "far": ({"rope_freq_scale": 1 / 32}, {"rope_scale": 1 / 32}, Yarn(N_CTX)),
    "of another length": ({"rope_scale": 4.0, "yarn_orig_ctx": 64}, {"rope_scale": 0.25}, Yarn(64)),
    "some": ({"rope_scale": 4.0, "yarn_ext_factor": 0.3}, {"rope_scale": 0.25}, Yarn(N_CTX, share=0.3)),
    "fast": (
        {"rope_scale": 4.0, "yarn_beta_fast": 100.0},
        {"rope_scale": 0.25},
        Yarn(N_CTX, beta_fast=100.0),
    ),
    "slow": ({"rope_scale": 4.0, "yarn_beta_slow": 10.0}, {"rope_scale": 0.25}, Yarn(N_CTX, beta_slow=10.0)),
}


@pytest.mark.parametrize(("options", "expected"), LINEAR.values(), ids=LINEAR)
def test_positions_are_scaled(models, options, expected):
    assert_same_logits(models / "llama-bpe.gguf", options, expected)


@pytest.mark.parametrize(("options", "expected", "yarn"), YARN.values(), ids=YARN)
def test_positions_are_scaled_by_yarn(models, options, expected, yarn):
    size = yarn_size(1 / expected["rope_scale"])
    expected = {**expected, "rope_size": size, "yarn": yarn}
    assert_same_logits(models / "llama-bpe.gguf", {"rope_scaling": "yarn", **options}, expected)


def test_without_extrapolation_yarn_is_linear_and_attention_has_a_scale(models):
    options = {"rope_scaling": "yarn", "rope_scale": 4.0, "yarn_ext_factor": 0.0, "yarn_attn_factor": 1.5}
    assert_same_logits(models / "llama-bpe.gguf", options, {"rope_scale": 0.25, "rope_size": 1.5})


def test_with_extrapolation_libllama_computes_the_scale_of_attention_itself(models):
    path = models / "llama-bpe.gguf"
    yarn = {"rope_scaling": "yarn", "rope_scale": 4.0}
    assert np.array_equal(logits(path, **yarn), logits(path, **yarn, yarn_attn_factor=3.0))


def test_a_later_context_is_like_the_first(models):
    """libllama changes the model where YaRN stretches it."""
    settings = EngineSettings(model=str(models / "llama-bpe.gguf"), rope_scaling="yarn", rope_scale=4.0)
    model = Model.load(settings)
    with LlamaHarness(models / "llama-bpe.gguf", n_ctx=0, rope_scaling="yarn", rope_scale=4.0) as bench:
        assert bench.backend.n_ctx == N_CTX
    vectors = []
    for _ in range(2):
        encoder = Encoder(model, settings)
        encoder.decode([Chunk(0, 0, TOKENS, 1)])
        vectors += encoder.vectors()
        assert encoder.info().n_ctx == 4 * N_CTX
        encoder.close()
    first, second = vectors
    assert np.array_equal(first, second)
    model.close()


def test_vectors_are_of_scaled_positions(encoders):
    path = encoders / "llama-last.gguf"
    settings = EngineSettings(model=str(path), n_threads=1, rope_freq_base=500.0, rope_scale=4.0, **EXACT)
    model = Model.load(settings)
    encoder = Encoder(model, settings)
    encoder.decode([Chunk(0, 0, TOKENS, 1)])
    decoder = replace(reference.read_decoder(path), rope_base=500.0, rope_scale=0.25)
    assert np.abs(encoder.vectors()[0] - reference.token_rows(decoder, TOKENS)[-1]).max() < CLOSE
    encoder.close()
    model.close()


CONTRADICTIONS: dict[str, Any] = {
    "scales": (
        {"rope_scale": 4.0, "rope_freq_scale": 0.5},
        "--rope-scale 4 and --rope-freq-scale 0.5 contradict each other",
    ),
    "none": (
        {"rope_scaling": "none", "rope_freq_scale": 0.5},
        "--rope-scaling none does not scale",
    ),
    "tiny scale": ({"rope_freq_scale": 1e-12, "rope_scaling": "yarn"}, "1e-12: it must be between 0.001"),
    "no number": ({"rope_freq_scale": math.nan}, "--rope-freq-scale nan: it must be between"),
    "values": (
        {"cache_type_v": "q8_0", "flash_attn": "off"},
        "--cache-type-v q8_0 needs flash attention: leave --flash-attn at auto or on",
    ),
}


@pytest.mark.parametrize(("options", "message"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_contradictions_are_told_before_anything_is_loaded(options, message):
    with pytest.raises(CorralError, match=message):
        Model.load(EngineSettings(model="/there/is/none.gguf", **options))


def test_defaults_are_those_of_libllama():
    params, default = context_params(EngineSettings(model="")), lib.llama_context_default_params()
    for name in {name for name, _ in params._fields_} - {"swa_full"}:  # llama-server's is not libllama's
        if isinstance(getattr(params, name), int | float):
            assert getattr(params, name) == getattr(default, name), name


# libllama scales keys again when it moves them, if positions scale them at all, and those of every slot.
SCALED_KEYS = [
    {"rope_scaling": "yarn", "rope_scale": 4.0},
    {"rope_scaling": "yarn", "rope_scale": 4.0, "yarn_ext_factor": 0.5},
    {"yarn_attn_factor": 1.1},
]


@pytest.mark.parametrize("options", SCALED_KEYS)
def test_what_positions_have_scaled_is_not_moved(models, options):
    with LlamaHarness(models / "llama-bpe.gguf", n_ctx_slot=256, context_shift=True, **options) as bench:
        assert lib.llama_memory_can_shift(lib.llama_get_memory(bench.backend.handle))
        bench.run(task(0, bench.prompt(50), n_predict=300))
        assert bench.done(0).stop_type is StopType.LIMIT
        assert len(bench.tokens(0)) == 256 - 50
        assert refuse(bench, Verb.SHIFT, n_keep=10, n_discard=10).status == 501
        cut = bench.prompt(150)[:40] + bench.prompt(150)[80:]
        bench.run(task(1, bench.prompt(150)))
        bench.run(task(2, cut, n_cache_reuse=8))
        assert bench.n_cached(2) == 40


@pytest.mark.parametrize(
    "options",
    [{"rope_scale": 4.0}, {"rope_freq_base": 500.0}, {"rope_scaling": "yarn", "yarn_ext_factor": 0.0}],
)
@pytest.mark.parametrize("name", ["llama-bpe", "gemma-swa"])
def test_what_positions_only_turn_is_moved(models, name, options):
    with LlamaHarness(models / f"{name}.gguf", n_ctx_slot=256, context_shift=True, **options) as bench:
        bench.run(task(0, bench.prompt(50), n_predict=300, n_keep=8))
        assert bench.done(0).truncated
        assert len(bench.tokens(0)) == 300


def test_self_extend_needs_keys_that_can_be_moved(models):
    with pytest.raises(CorralError, match="--grp-attn-n"):
        LlamaHarness(
            models / "llama-bpe.gguf", grp_attn_n=4, grp_attn_w=32, rope_scaling="yarn", rope_scale=4.0
        )


# Overridden metadata.


def test_metadata_can_be_overridden(models):
    options = {"overrides": (Override("llama.rope.freq_base", 500.0),)}
    assert_same_logits(models / "llama-bpe.gguf", options, {"rope_base": 500.0})


@pytest.mark.parametrize("vocab_only", [True, False])
def test_the_tokenizer_heeds_overrides(models, vocab_only):
    path = str(models / "llama-spm.gguf")
    tokenized = []
    for value in (True, False):
        overrides = [
            Override("tokenizer.ggml.add_bos_token", value),
            Override("tokenizer.ggml.bos_token_id", 2),
        ]
        model = Model.open(path, vocab_only=vocab_only, overrides=overrides)
        tokenized.append(model.vocab.tokenize("hello", True, True))
        model.close()
    assert tokenized[0] == [2, *tokenized[1]]


def test_texts_can_be_overridden(models):
    path = str(models / "llama-bpe.gguf")
    Model.open(path, overrides=[Override("tokenizer.ggml.pre", "llama3")]).close()
    with pytest.raises(CorralError, match="'nonsense'"):
        Model.open(path, overrides=[Override("tokenizer.ggml.pre", "nonsense")])


WRONG_OVERRIDES: dict[str, Any] = {
    "type": (Override("llama.rope.freq_base", 500), "'llama.rope.freq_base' is of type float"),
    "type of what is not there": (Override("tokenizer.ggml.add_eos_token", 1), "is of type bool"),
    "text": (Override("llama.context_length", "long"), "'llama.context_length' is of type int"),
    "unknown": (Override("llama.nonsense", 1), "this model does not use 'llama.nonsense'"),
    "twice": (Override("llama.block_count", 2), "'llama.block_count' is given more than once"),
    "large": (Override("llama.context_length", 2**63), "does not fit into 64 bits"),
}


@pytest.mark.parametrize(("override", "message"), WRONG_OVERRIDES.values(), ids=WRONG_OVERRIDES)
def test_an_override_that_has_no_effect_is_refused(models, override, message):
    overrides = (Override("llama.block_count", 2), override)
    with pytest.raises(CorralError, match=rf"--override-kv: .*{message}"):
        Model.load(EngineSettings(model=str(models / "llama-bpe.gguf"), overrides=overrides))


def test_what_a_model_says_of_itself_can_be_overridden(models):
    overrides = (Override("llama.context_length", 512),)
    with LlamaHarness(models / "llama-bpe.gguf", n_ctx=0, overrides=overrides) as bench:
        assert bench.backend.n_ctx == 512


def test_the_pooling_of_a_model_can_be_overridden(encoders):
    for value, pooling in ((1, Pooling.MEAN), (2, Pooling.CLS), (3, Pooling.LAST)):
        overrides = (Override("bert.pooling_type", value),)
        settings = EngineSettings(model=str(encoders / "bert-embed.gguf"), overrides=overrides)
        model = Model.load(settings)
        encoder = Encoder(model, settings)
        assert encoder.pooling is pooling
        encoder.close()
        model.close()


# Invalid weights.


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_invalid_weights_are_found_if_somebody_looks(models, tmp_path, mmap, value):
    path = tmp_path / "broken.gguf"
    path.write_bytes((models / "llama-bpe.gguf").read_bytes())
    tensor = next(t for t in GGUFReader(path, "r+").tensors if t.name == "blk.1.ffn_up.weight")
    tensor.data[3, 5] = value
    settings = EngineSettings(model=str(path), mmap=mmap, check_tensors=True)
    with pytest.raises(CorralError, match=r"'blk\.1\.ffn_up\.weight'"):
        Model.load(settings)
    Model.open(str(path)).close()
    Model.load(EngineSettings(model=str(models / "llama-bpe.gguf"), mmap=mmap, check_tensors=True)).close()


# What tells models apart.


def test_without_any_change_the_fingerprint_is_that_of_the_file(models):
    path = str(models / "llama-bpe.gguf")
    same: dict[str, Any] = {
        "rope_scaling": "",
        "cache_type_k": "q8_0",
        "cache_type_v": "f32",
        "check_tensors": True,
        "control_vector_layers": (1, 2),
    }
    assert model_fingerprint(EngineSettings(model=path, **same)) == fingerprint(path)


def test_whatever_changes_what_a_model_computes_changes_its_fingerprint(models, tmp_path):
    one = str(tiny_vectors.write_vector(tmp_path / "1.gguf", {"direction.1": tiny_vectors.direction(1)}))
    two = str(tiny_vectors.write_vector(tmp_path / "2.gguf", {"direction.1": tiny_vectors.direction(2)}))
    changes: list[dict[str, Any]] = [
        {},
        {"rope_scaling": "none"},
        {"rope_scaling": "yarn"},
        {"rope_freq_base": 500.0},
        {"rope_freq_base": 501.0},
        {"rope_scale": 2.0},
        {"rope_scale": 4.0},
        {"yarn_orig_ctx": 512},
        {"yarn_ext_factor": 0.5},
        {"yarn_attn_factor": 0.5},
        {"yarn_beta_slow": 0.5},
        {"yarn_beta_fast": 0.5},
        {"overrides": (Override("a", 1),)},
        {"overrides": (Override("a", True),)},
        {"overrides": (Override("a", 1.0),)},
        {"overrides": (Override("a", "1"),)},
        {"overrides": (Override("b", 1),)},
        {"control_vectors": (ScaledFile(one),)},
        {"control_vectors": (ScaledFile(one, 0.5),)},
        {"control_vectors": (ScaledFile(two),)},
        {"control_vectors": (ScaledFile(one), ScaledFile(two))},
        {"control_vectors": (ScaledFile(one),), "control_vector_layers": (1, 1)},
    ]
    path = str(models / "llama-bpe.gguf")
    prints = [model_fingerprint(EngineSettings(model=path, **change)) for change in changes]
    assert len(set(prints)) == len(changes)
    assert {len(each) for each in prints} == {16}
    halved = model_fingerprint(EngineSettings(model=path, rope_freq_scale=0.5))
    assert halved == prints[changes.index({"rope_scale": 2.0})]


def assert_same_logits(path, options, expected):
    decoder = reference.read_decoder(path)
    computed = logits(path, **options)
    assert np.abs(computed - reference.logits(replace(decoder, **expected), TOKENS)).max() < CLOSE
    if expected:
        assert np.abs(computed - reference.logits(decoder, TOKENS)).max() > FAR


def logits(path, **options):
    with LlamaHarness(path, **EXACT, **options) as bench:
        assert bench.backend.decode([Chunk(0, 0, TOKENS, 1)]) is DecodeStatus.OK
        return bench.backend.logits(0).copy()
