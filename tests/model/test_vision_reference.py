"""libmtmd's vectors for pictures are those of the plain reference."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
from llama_cpp import llama_cpp as lib
from llama_cpp import mtmd_cpp as mtmd

from tests.tools.vision_reference import Array, Pixels, embed_llava


def solid(*color: int) -> Pixels:
    return np.full((32, 32, 3), color, np.uint8)


def noise(width: int, height: int) -> Pixels:
    return np.random.RandomState(width).randint(0, 256, (height, width, 3)).astype(np.uint8)


PICTURES = {
    "red": solid(255, 0, 0),
    "blue": solid(0, 0, 255),
    "noise": noise(32, 32),
    "wide": noise(97, 45),
    "tall": noise(17, 61),
    "small": noise(16, 16),
    "large": noise(320, 240),
    "narrow": noise(2, 300),
    "dot": noise(1, 1),
}


@pytest.mark.parametrize("name", PICTURES)
def test_llava_gives_the_vectors_of_the_reference(vision, name):
    path = vision / "mmproj-llava.gguf"
    expected = embed_llava(path, PICTURES[name])
    given = embed(vision / "llama-bpe.gguf", path, PICTURES[name])
    assert given.shape == expected.shape == (16, 64)
    assert np.abs(given - expected).max() < 2e-3 * np.linalg.norm(expected, axis=1).mean()


def test_vectors_of_different_pictures_lie_apart(vision):
    red, blue, noisy = (
        embed_llava(vision / "mmproj-llava.gguf", PICTURES[name]) for name in ("red", "blue", "noise")
    )
    for one, other in [(red, blue), (red, noisy), (blue, noisy)]:
        assert np.linalg.norm(one - other, axis=1).min() > 0.3 * np.linalg.norm(one, axis=1).mean()


def embed(model_path: Path, mmproj: Path, rgb: Pixels) -> Array:
    """What libmtmd gives for a prompt that is one picture, with attention in full precision."""
    model = lib.llama_model_load_from_file(str(model_path).encode(), lib.llama_model_default_params())
    params = mtmd.mtmd_context_params_default()
    params.use_gpu = params.warmup = params.print_timings = False
    params.n_threads, params.flash_attn_type = 1, 0
    context = mtmd.mtmd_init_from_file(str(mmproj).encode(), model, params)
    pixels = np.ascontiguousarray(rgb).ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
    bitmap = mtmd.mtmd_bitmap_init(rgb.shape[1], rgb.shape[0], pixels)
    marker = mtmd.mtmd_default_marker()
    text = mtmd.mtmd_input_text(marker, len(marker), False, True)
    chunks = mtmd.mtmd_input_chunks_init()
    bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
    assert mtmd.mtmd_tokenize(context, chunks, ctypes.byref(text), bitmaps, 1) == 0
    chunk = mtmd.mtmd_input_chunks_get(chunks, 0)
    assert mtmd.mtmd_encode_chunk(context, chunk) == 0
    shape = mtmd.mtmd_input_chunk_get_n_tokens(chunk), lib.llama_model_n_embd(model)
    vectors = np.ctypeslib.as_array(mtmd.mtmd_get_output_embd(context), shape=shape).copy()
    mtmd.mtmd_input_chunks_free(chunks)
    mtmd.mtmd_bitmap_free(bitmap)
    mtmd.mtmd_free(context)
    lib.llama_model_free(model)
    return vectors
