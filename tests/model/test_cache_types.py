"""Keys and values of every type: what they compute, and conversations that are saved, copied and moved."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import numpy as np
import pytest

from corral.core.chunk import Chunk, DecodeStatus
from corral.core.errors import CorralError
from corral.core.result import StopType, Tier
from corral.core.settings import EngineSettings
from corral.core.task import Stop, Verb
from corral.llama.encoder import Encoder
from corral.llama.hardware import uses_flash_attn
from corral.llama.library import lib
from corral.llama.model import Model
from corral.tuning.divergence import compare_settings, sample_text
from tests.model.llama_harness import LlamaHarness, task
from tests.model.slot_actions import (
    assert_report,
    chosen,
    forked_and_continued,
    go_on,
    held,
    moved,
    pruned,
    refuse,
    refuse_restore,
    restore,
    save,
    shifted_by_itself,
)
from tests.tools import tiny_heads, tiny_models
from tests.tools.tiny_deepseek2 import add_deepseek2

# How far logits may be from those with f32, on the average and in parts of their deviation.
ERRORS = {
    "f32": 0.01,
    "f16": 0.01,
    "bf16": 0.02,
    "q8_0": 0.06,
    "q5_1": 0.4,
    "q5_0": 0.4,
    "q4_1": 0.6,
    "q4_0": 0.6,
    "iq4_nl": 0.6,
}
TYPES = list(ERRORS)
QUANTIZED = TYPES[3:]
MIXED = [("q8_0", "f16"), ("f16", "q8_0"), ("q5_1", "q4_0"), ("f32", "bf16"), ("bf16", "iq4_nl")]
PAIRS = [*zip(TYPES, TYPES, strict=True), *MIXED]
MODELS = [write.__name__.replace("_", "-") for write in tiny_heads.ALL]
SHAPES: dict[str, Any] = {"split": {"n_parallel": 3}, "unified": {"n_parallel": 3, "kv_unified": True}}
TOKENS = np.random.default_rng(0).integers(0, 250, (4, 64), np.int32)
PIECE = 1e-2

pytestmark = pytest.mark.one_in(3)
on_models = pytest.mark.parametrize("name", MODELS)
of_types = pytest.mark.parametrize(("keys", "values"), PAIRS)
in_any_shape = pytest.mark.parametrize("shape", SHAPES)


def types(keys, values, flash_attn="auto"):
    return {"cache_type_k": keys, "cache_type_v": values, "flash_attn": flash_attn}


@on_models
@pytest.mark.parametrize("flash_attn", ["off", "on"])
@of_types
def test_logits_are_close_to_those_of_full_precision(heads, name, keys, values, flash_attn):
    path = heads / f"{name}.gguf"
    if flash_attn == "off" and values in QUANTIZED:
        with pytest.raises(CorralError, match="needs flash attention"):
            LlamaHarness(path, **types(keys, values, flash_attn))
        return
    expected = logits(path, **types("f32", "f32", "off"))
    error = logits(path, **types(keys, values, flash_attn)) - expected
    assert np.sqrt((error**2).mean()) / expected.std() < max(ERRORS[keys], ERRORS[values])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "keys", "values"),
    [("default", "q8_0", "q8_0"), ("default", "bf16", "bf16"), ("default", "f32", "f32")],
    indirect=["model"],
)
def test_a_real_model_says_the_same(model, keys, values):
    """But for what rounding does to a choice between two tokens."""
    usual, other = (
        EngineSettings(model=str(model), n_ctx=512, **options)
        for options in (types("f16", "f16", "on"), types(keys, values, "on"))
    )
    (found,) = compare_settings([usual, other], [(0, 1)], sample_text()[:5000], lambda _: None)
    assert found.n_tokens >= 256
    assert found.mean_kl < 0.02
    assert found.top1 > 0.9
    assert found.perplexity_b == pytest.approx(found.perplexity_a, rel=0.05)


def test_values_that_need_it_turn_flash_attention_on():
    for name in TYPES:
        settings = EngineSettings(model="", n_gpu_layers=0, batch_exact="on", cache_type_k=name)
        assert not uses_flash_attn(settings)
        settings = msgspec.structs.replace(settings, cache_type_v=name)
        assert uses_flash_attn(settings) == (name in QUANTIZED)


@pytest.mark.parametrize("flash_attn", ["off", "on", "auto"])
@pytest.mark.parametrize("name", ["llama-bpe", "gemma-swa"])
def test_heads_that_are_no_whole_blocks_are_refused(models, name, flash_attn):
    """Without flash attention libllama would not even notice, and compute nonsense."""
    path = models / f"{name}.gguf"
    for quantized in QUANTIZED:
        message = f"{quantized} comes in blocks of 32, but the heads of this model have 16 keys: use f16"
        with pytest.raises(CorralError, match=f"--cache-type-k {message}"):
            LlamaHarness(path, **types(quantized, "f16", flash_attn))
    if flash_attn != "off":
        with pytest.raises(CorralError, match=r"--cache-type-v q4_0.*16"):
            LlamaHarness(path, **types("f16", "q4_0", flash_attn))


def test_what_libllama_refuses_is_told(tmp_path):
    path = tiny_models._write(
        tmp_path / "mla.gguf",
        tiny_models._Recipe("deepseek2", 3, tiny_models._bpe_vocabulary, add_deepseek2),
    )
    with pytest.raises(CorralError, match=r"f32.*f16"):
        LlamaHarness(path, cache_type_k="f32")


def test_a_model_without_keys_and_values_has_none_to_quantize(models, encoders):
    options = types("q8_0", "q4_0")
    with (
        LlamaHarness(models / "mamba.gguf", **options) as bench,
        LlamaHarness(models / "mamba.gguf") as other,
    ):
        for each in (bench, other):
            each.run(task(0, each.prompt(40)))
        assert bench.answer(0) == other.answer(0)
    path = encoders / "bert-embed.gguf"
    assert np.array_equal(vector(path), vector(path, **options))


@on_models
@of_types
def test_vectors_of_a_decoder_come_from_such_a_cache_too(heads, name, keys, values):
    path = heads / f"{name}.gguf"
    expected, found = vector(path, **types("f32", "f32", "on")), vector(path, **types(keys, values))
    error = np.sqrt(((expected - found) ** 2).mean()) / expected.std()
    assert (0 < error < max(ERRORS[keys], ERRORS[values])) or keys == values == "f32"


@on_models
@of_types
@in_any_shape
def test_a_restored_conversation_goes_on(heads, name, keys, values, shape):
    options = {**types(keys, values, "on"), "n_ctx_slot": 256}
    path = heads / f"{name}.gguf"
    with LlamaHarness(path, **options, **SHAPES[shape]) as bench:
        forked_and_continued(bench, 2)
        blob, tokens = save(bench, 2), held(bench, 2)
        expected = go_on(bench, 2)
    for others in ({"n_parallel": 1}, SHAPES["split"], SHAPES["unified"]):
        with LlamaHarness(path, **options, **others) as bench:
            slot = others["n_parallel"] - 1
            assert restore(bench, blob, slot).n_tokens == len(tokens)
            assert save(bench, slot) == blob or slot < 2
            assert go_on(bench, slot) == expected


@on_models
@of_types
@in_any_shape
def test_a_copied_prefix_is_what_it_is_a_copy_of(heads, name, keys, values, shape):
    with LlamaHarness(heads / f"{name}.gguf", **types(keys, values, "on"), **SHAPES[shape]) as bench:
        prompt = bench.prompt(90)
        bench.run(task(0, prompt, id_slot=0, n_predict=0))
        bench.run(task(1, [*prompt, *bench.prompt(12, seed=1)], id_slot=1, n_predict=0))
        assert bench.n_cached(1) >= 88
        states = []
        for slot in (0, 1):
            bench.kv.trim(bench.slots[slot], 80)
            restore(bench, save(bench, slot), 2)  # which sequence it is of is in a state, too
            states.append(save(bench, 2))
        assert states[0] == states[1]


@on_models
@of_types
@in_any_shape
def test_a_prompt_comes_back_from_memory_and_from_disk(heads, name, keys, values, shape, tmp_path):
    options = {**types(keys, values, "on"), **SHAPES[shape], "n_parallel": 1, "cache_disk": str(tmp_path)}
    with LlamaHarness(heads / f"{name}.gguf", **options) as bench:
        prompt = bench.prompt(91)
        longer = [*prompt, *bench.prompt(20, seed=2)]
        bench.run(task(0, prompt, n_predict=0))
        bench.run(task(1, longer, n_predict=4))
        bench.run(task(2, bench.prompt(90, seed=1)))
        bench.run(task(3, longer, n_predict=4, cache_report=True))
        assert_report(bench, 3, Tier.RAM, bench.n_cached(3))
        assert bench.n_cached(3) >= 88
        assert bench.answer(3) == bench.answer(1)
        bench.engine.handle(Stop())
    with LlamaHarness(heads / f"{name}.gguf", **options) as again:
        again.run(task(3, longer, n_predict=4, cache_report=True))
        assert_report(again, 3, Tier.DISK, again.n_cached(3))
        assert again.answer(3) == bench.answer(1)


MOVABLE = [("heads-64", name) for name in TYPES if name != "bf16"]
MOVABLE += [(name, floats) for name in MODELS if name != "heads-64" for floats in ("f32", "f16")]
RIGID = [(name, "bf16") for name in MODELS]
RIGID += [(name, quantized) for name in MODELS if name != "heads-64" for quantized in QUANTIZED]


@pytest.mark.parametrize(("name", "keys"), MOVABLE)
@pytest.mark.parametrize("values", ["f16", "q8_0", "iq4_nl"])
@in_any_shape
def test_keys_are_moved(heads, name, keys, values, shape):
    """Positions count only by their distance: what is moved as a whole goes on as if it had not been."""
    with LlamaHarness(heads / f"{name}.gguf", **types(keys, values, "on"), **SHAPES[shape]) as bench:
        assert bench.backend.can_shift
        expected, found = [], []
        for tokens in TOKENS:
            expected.append(evaluate(bench, 1, tokens))
            bench.backend.trim(1, len(tokens) - 1)
            lib.llama_memory_seq_add(lib.llama_get_memory(bench.backend.handle), 1, 0, -1, 40)
            found.append(evaluate(bench, 1, tokens[-1:], len(tokens) + 39))
            bench.backend.trim(1, 0)
        error = np.stack(found) - np.stack(expected)
        assert np.sqrt((error**2).mean()) / np.stack(expected).std() < max(ERRORS[keys], PIECE)


@pytest.mark.parametrize(("name", "keys"), MOVABLE)
@in_any_shape
@pytest.mark.parametrize("conversation", [shifted_by_itself, pruned, moved])
def test_a_conversation_goes_on_after_a_shift(heads, name, keys, shape, conversation):
    options = {**types(keys, "q8_0", "on"), "n_ctx_slot": 256, "context_shift": True, **SHAPES[shape]}
    if shape == "unified":
        options["n_ctx"] = 256
    with LlamaHarness(heads / f"{name}.gguf", **options) as bench:
        conversation(bench, 2)
        blob, tokens = save(bench, 2), held(bench, 2)
        expected = go_on(bench, 2)
    with LlamaHarness(heads / f"{name}.gguf", **options) as bench:
        restore(bench, blob, 2)
        assert held(bench, 2) == tokens
        n_cached, answer = go_on(bench, 2)
        assert n_cached == expected[0]
        # In one buffer the gaps are still there before it is saved, and sums run in another order.
        n_same = 24 if shape == "split" else 1
        assert chosen(answer)[:n_same] == chosen(expected[1])[:n_same]
        assert answer == expected[1] or shape == "unified"


@pytest.mark.parametrize(("name", "keys"), RIGID)
@in_any_shape
def test_keys_that_libllama_would_die_of_moving_are_not_moved(heads, name, keys, shape):
    options = {**types(keys, "f16"), "n_ctx": 256, "n_parallel": 1, "context_shift": True}
    options["kv_unified"] = shape == "unified"
    with LlamaHarness(heads / f"{name}.gguf", **options) as bench:
        assert not bench.backend.can_shift
        bench.run(task(0, bench.prompt(50), n_predict=300))
        assert bench.done(0).stop_type is StopType.LIMIT
        assert refuse(bench, Verb.SHIFT, n_keep=10, n_discard=10).status == 501
        bench.run(task(1, bench.prompt(60, seed=1)))
        assert bench.done(1).stop_type is StopType.LIMIT
    with pytest.raises(CorralError, match="--grp-attn-n"):
        LlamaHarness(heads / f"{name}.gguf", **{**options, "grp_attn_n": 4, "grp_attn_w": 32})


@on_models
@pytest.mark.parametrize("option", ["cache_type_k", "cache_type_v"])
@pytest.mark.parametrize(("here", "there"), list(itertools.permutations(["f32", "f16", "q8_0", "q4_0"], 2)))
def test_a_state_of_another_type_is_refused(heads, name, option, here, there):
    what = "keys" if option == "cache_type_k" else "values"
    with LlamaHarness(heads / f"{name}.gguf", flash_attn="on", **{option: there}) as bench:
        bench.run(task(0, bench.prompt(40)))
        blob = save(bench, 0)
    with LlamaHarness(heads / f"{name}.gguf", flash_attn="on", **{option: here}) as bench:
        error = refuse_restore(bench, blob)
        assert error.status == 400
        assert f"its {what} are {there} with rows of" in error.message
        assert f"where this server has {here} with rows of" in error.message
        assert "-ctk, -ctv" in error.message
        bench.run(task(0, bench.prompt(40)))
        assert len(bench.tokens(0)) == 24


def test_a_disk_cache_of_another_type_is_a_miss(heads, tmp_path):
    options: dict[str, Any] = {"cache_disk": str(tmp_path), "flash_attn": "on"}
    with LlamaHarness(heads / "heads-64.gguf", **options) as bench:
        bench.run(task(0, prompt := bench.prompt(200)))
        bench.engine.handle(Stop())
    with LlamaHarness(heads / "heads-64.gguf", **options, cache_type_k="q8_0") as bench:
        bench.run(task(0, prompt))
        assert bench.n_cached(0) == 0
        assert len(bench.tokens(0)) == 24


def logits(path, **options):
    with LlamaHarness(path, n_parallel=len(TOKENS), **options) as bench:
        return np.stack([evaluate(bench, seq, tokens) for seq, tokens in enumerate(TOKENS)])


def evaluate(bench, seq, tokens, pos=0):
    assert bench.backend.decode([Chunk(seq, pos, tokens, 1)]) is DecodeStatus.OK
    return bench.backend.logits(0).copy()


def vector(path, **options):
    settings = EngineSettings(model=str(path), n_threads=1, **options)
    model = Model.load(settings)
    encoder = Encoder(model, settings)
    encoder.decode([Chunk(0, 0, TOKENS[0] % 64, 1)])
    (found,) = encoder.vectors()
    encoder.close()
    model.close()
    return found
