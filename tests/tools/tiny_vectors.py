"""Writes control vectors, and a model of several layers for them: `python -m tests.tools.tiny_vectors DIR`.

Of a model with two layers, as the others have, control vectors change only one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGUFWriter

from tests.tools import tiny_models as tiny
from tests.tools.tiny_models import N_CTX, N_EMBD, Weights

N_LAYER = 4


def llama_deep(directory: Path) -> Path:
    """A llama of four layers."""
    return tiny.write_file(directory / "llama-deep.gguf", "llama", _fill)


ALL = (llama_deep,)


def write_vector(path: Path, tensors: Mapping[str, npt.NDArray[np.generic]]) -> Path:
    """A control vector as llama.cpp's generator writes it, if the tensors are."""
    writer = GGUFWriter(path, "controlvector")
    writer.add_string("controlvector.model_hint", "llama")
    writer.add_uint32("controlvector.layer_count", len(tensors))
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def direction(seed: int, n: int = N_EMBD) -> npt.NDArray[np.float32]:
    return np.random.RandomState(seed).standard_normal(n).astype(np.float32)


def _fill(writer: GGUFWriter) -> None:
    vocabulary = tiny._bpe_vocabulary()
    weights = Weights(writer, 81)
    writer.add_name("tiny llama-deep")
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(N_LAYER)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    vocabulary.add_keys(writer)
    weights.matrix("token_embd.weight", len(vocabulary.tokens), N_EMBD, gain=np.sqrt(N_EMBD))
    tiny._add_attention_keys(writer)
    for i in range(N_LAYER):
        tiny._add_attention_layer(weights, i)
    weights.vector("output_norm.weight", N_EMBD)
    weights.rows("output.weight", N_EMBD, 4.0 * vocabulary.loudness)


if __name__ == "__main__":
    tiny.main(ALL)
