"""Control vectors on real libllama: what a decoder in plain numpy computes with them; files that are none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from corral.core.chunk import Chunk, DecodeStatus
from corral.core.errors import CorralError
from corral.core.modifier import ScaledFile
from corral.core.settings import EngineSettings
from corral.llama.control_vector import read_directions
from corral.llama.encoder import Encoder
from corral.llama.model import Model
from tests.model import decoder_reference as reference
from tests.model.llama_harness import LlamaHarness, alone, task
from tests.model.slot_actions import refuse_restore, restore, save
from tests.tools.tiny_models import N_EMBD
from tests.tools.tiny_vectors import N_LAYER, direction, write_vector

CLOSE = 1e-3
FAR = 0.1
EXACT: dict[str, Any] = {"cache_type_k": "f32", "cache_type_v": "f32"}
TOKENS = np.random.default_rng(0).integers(0, 250, 60, np.int32)
ONE = {i: direction(i) for i in range(1, N_LAYER)}
TWO = {i: direction(10 + i) for i in (1, 3)}


@pytest.fixture
def one(tmp_path):
    return write(tmp_path / "one.gguf", ONE)


@pytest.fixture
def two(tmp_path):
    return write(tmp_path / "two.gguf", TWO)


def test_the_hidden_state_behind_a_layer_moves(deep, one):
    assert_same_logits(deep, {"control_vectors": (ScaledFile(one),)}, ONE)


@pytest.mark.parametrize("scale", [0.5, -2.0, 0.1])
def test_a_vector_has_a_scale(deep, one, scale):
    expected = {layer: scale * values for layer, values in ONE.items()}
    assert_same_logits(deep, {"control_vectors": (ScaledFile(one, scale),)}, expected)


def test_a_scale_of_nothing_changes_nothing(deep, one):
    assert np.array_equal(logits(deep), logits(deep, control_vectors=(ScaledFile(one, 0.0),)))


def test_vectors_add_up(deep, one, two):
    files = (ScaledFile(one, 0.5), ScaledFile(two, -1.5), ScaledFile(two, 0.5))
    expected = {i: 0.5 * ONE[i] - TWO.get(i, np.zeros(N_EMBD)) for i in ONE}
    assert_same_logits(deep, {"control_vectors": files}, expected)


@pytest.mark.parametrize(
    ("layers", "kept"),
    [
        ((0, 0), [1, 2, 3]),
        ((1, 4), [1, 2, 3]),
        ((2, 2), [2]),
        ((3, 0), [3]),
        ((0, 1), [1]),
        ((2, 3), [2, 3]),
    ],
)
def test_only_layers_of_the_range_get_theirs(deep, one, layers, kept):
    options = {"control_vectors": (ScaledFile(one),), "control_vector_layers": layers}
    assert_same_logits(deep, options, {i: ONE[i] for i in kept})


@pytest.mark.parametrize("layers", [(2, 1), (4, 4), (1, 5), (7, 9)])
def test_a_range_without_layers_is_refused(deep, one, layers):
    first, last = layers
    with pytest.raises(CorralError, match=rf"--control-vector-layer-range {first} {last}: .*1 to 3"):
        logits(deep, control_vectors=(ScaledFile(one),), control_vector_layers=layers)


def test_a_range_that_no_vector_is_for_is_refused(deep, two):
    with pytest.raises(CorralError, match="layers 2 to 2"):
        logits(deep, control_vectors=(ScaledFile(two),), control_vector_layers=(2, 2))


@pytest.mark.parametrize("name", ["llama-bpe", "llama-spm", "mamba", "gemma-swa"])
def test_other_models_are_steered_too(models, tmp_path, name):
    path = write(tmp_path / "vector.gguf", {1: direction(1)})
    plain = logits(models / f"{name}.gguf")
    steered = logits(models / f"{name}.gguf", control_vectors=(ScaledFile(path),))
    assert np.abs(plain - steered).max() > FAR


def test_vectors_of_texts_are_steered(encoders, tmp_path):
    path = encoders / "llama-last.gguf"
    steering = {1: direction(1)}
    file = write(tmp_path / "vector.gguf", steering)
    settings = EngineSettings(model=str(path), n_threads=1, control_vectors=(ScaledFile(file),), **EXACT)
    model = Model.load(settings)
    encoder = Encoder(model, settings)
    expected = reference.token_rows(replace(reference.read_decoder(path), steering=steering), TOKENS)[-1]
    for n_cells in (0, 5000):
        encoder.reserve(n_cells)
        encoder.decode([Chunk(0, 0, TOKENS, 1)])
        assert np.abs(encoder.vectors()[0] - expected).max() < CLOSE
        encoder.forget(0)
    encoder.close()
    model.close()


def test_a_model_that_does_not_heed_them_is_refused(encoders, tmp_path):
    path = write(tmp_path / "vector.gguf", {1: direction(1)})
    settings = EngineSettings(model=str(encoders / "bert-embed.gguf"), control_vectors=(ScaledFile(path),))
    model = Model.load(settings)
    with pytest.raises(CorralError, match="architecture does not support control vectors"):
        Encoder(model, settings)
    model.close()


def test_a_file_is_read_once(deep, tmp_path):
    """It may be gone when a context is opened anew."""
    path = write(tmp_path / "vector.gguf", ONE)
    with LlamaHarness(deep, n_parallel=1, control_vectors=(ScaledFile(path),)) as bench:
        (tmp_path / "vector.gguf").unlink()
        encoder = bench.backend.open_encoder()
        encoder.reserve(5000)
        encoder.close()


def test_a_larger_context_is_steered_as_well(deep, one):
    with LlamaHarness(deep, control_vectors=(ScaledFile(one),), **EXACT) as bench:
        found = []
        for n_seq in (1, 3):
            bench.backend.reserve(n_seq)
            bench.backend.decode([Chunk(n_seq - 1, 0, TOKENS, 1)])
            found.append(bench.backend.logits(0).copy())
            bench.backend.trim(n_seq - 1, 0)
    assert np.array_equal(*found)
    assert np.array_equal(found[0], logits(deep, control_vectors=(ScaledFile(one),)))


def test_a_state_is_of_its_control_vectors(deep, one, two):
    vectors: dict[str, Any] = {"control_vectors": (ScaledFile(one),)}
    with LlamaHarness(deep, **vectors) as bench:
        bench.run(first := task(0, bench.prompt(60)))
        assert bench.answer(0) == alone(deep, first, **vectors) != alone(deep, first)
        blob = save(bench, 0)
    with LlamaHarness(deep, **vectors) as bench:
        restore(bench, blob)
    for others in ({}, {"control_vectors": (ScaledFile(two),)}, {**vectors, "control_vector_layers": (2, 3)}):
        with LlamaHarness(deep, **others) as bench:
            error = refuse_restore(bench, blob)
            assert error.status == 400
            assert "model" in error.message


BROKEN: dict[str, Any] = {
    "nothing": ({}, "it contains no directions"),
    "the first layer": (
        {"direction.0": direction(0)},
        "'direction.0' is not a direction of a layer",
    ),
    "no number": ({"direction.one": direction(0)}, "'direction.one' is not a direction"),
    "a number like another": ({"direction.01": direction(0)}, "'direction.01' is not a direction"),
    "something else": (
        {"direction.1": direction(0), "token_embd": direction(1)},
        "'token_embd' is not a direction",
    ),
    "halves": (
        {"direction.1": direction(0).astype(np.float16)},
        "'direction.1' is not a row of f32, but f16 in 1",
    ),
    "a matrix": ({"direction.1": direction(0).reshape(8, 8)}, "not a row of f32, but f32 in 2 dimensions"),
    "no numbers": ({"direction.2": np.full(N_EMBD, np.nan, np.float32)}, "not all of its values are finite"),
    "too wide": ({"direction.1": direction(0, 128)}, "it is for a model of width 128, this one has 64"),
    "a narrow one": (
        {"direction.1": direction(0), "direction.2": direction(0, 32)},
        "for a model of width 32",
    ),
    "too deep": ({"direction.4": direction(0)}, "it has layer 4, but the model's last layer is 3"),
    "very deep": ({"direction.123456789": direction(0)}, "it has layer 123456789"),
}


@pytest.mark.parametrize(("tensors", "message"), BROKEN.values(), ids=BROKEN)
def test_what_is_no_control_vector_for_the_model_is_refused(deep, one, tmp_path, tensors, message):
    path = str(write_vector(tmp_path / "broken.gguf", tensors))
    with pytest.raises(CorralError) as caught:
        logits(deep, control_vectors=(ScaledFile(one), ScaledFile(path)))
    assert caught.value.message.startswith(f"control vector '{path}': ")
    assert message in caught.value.message


def test_a_model_is_no_control_vector(deep):
    with pytest.raises(CorralError, match=r"llama-deep\.gguf'.*'token_embd\.weight'"):
        logits(deep, control_vectors=(ScaledFile(str(deep)),))


def test_files_that_cannot_be_read_are_named(deep, tmp_path):
    for path in (tmp_path / "missing.gguf", tmp_path):
        with pytest.raises(CorralError, match=f"'{path}': "):
            Model.load(EngineSettings(model="/there/is/none.gguf", control_vectors=(ScaledFile(str(path)),)))


def test_no_beginning_of_a_file_is_accepted(tmp_path):
    whole = (tmp_path / "whole.gguf", tmp_path / "part.gguf")
    write(whole[0], {1: direction(1), 2: direction(2)})
    data = whole[0].read_bytes()
    directions = read_directions(str(whole[0]))
    assert {layer: values.tolist() for layer, values in directions.items()} == {
        1: direction(1).tolist(),
        2: direction(2).tolist(),
    }
    for n in range(0, len(data), 3):
        whole[1].write_bytes(data[:n])
        with pytest.raises(CorralError, match=r"part.gguf': "):
            read_directions(str(whole[1]))


def write(path, directions):
    return str(write_vector(path, {f"direction.{layer}": values for layer, values in directions.items()}))


def assert_same_logits(path, options, steering):
    decoder = reference.read_decoder(path)
    computed = logits(path, **options)
    assert np.abs(computed - reference.logits(replace(decoder, steering=steering), TOKENS)).max() < CLOSE
    assert np.abs(computed - reference.logits(decoder, TOKENS)).max() > FAR


def logits(path, **options):
    with LlamaHarness(path, **EXACT, **options) as bench:
        assert bench.backend.decode([Chunk(0, 0, TOKENS, 1)]) is DecodeStatus.OK
        return bench.backend.logits(0).copy()
