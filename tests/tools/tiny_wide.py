"""Writes a tiny model with rows of whole blocks of every encoding: `python -m tests.tools.tiny_wide DIR`."""

from __future__ import annotations

from pathlib import Path

from gguf import GGUFWriter, LlamaFileType

from tests.tools import tiny_models as tiny
from tests.tools.tiny_models import Weights

N_EMBD = 256
N_HEAD = 4
N_FF = 512
N_LAYER = 2


def wide(directory: Path) -> Path:
    """A llama with rows of 256 and 512 weights."""
    return tiny.write_file(directory / "wide.gguf", "llama", _fill)


ALL = (wide,)


def _fill(writer: GGUFWriter) -> None:
    vocabulary = tiny._bpe_vocabulary()
    n_vocab = len(vocabulary.tokens)
    weights = Weights(writer, 81)
    writer.add_file_type(LlamaFileType.ALL_F32)
    writer.add_context_length(tiny.N_CTX)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(N_LAYER)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    vocabulary.add_keys(writer)
    weights.matrix("token_embd.weight", n_vocab, N_EMBD, gain=16.0)
    for i in range(N_LAYER):
        weights.vector(f"blk.{i}.attn_norm.weight", N_EMBD)
        for name in ("q", "k", "v", "output"):
            weights.matrix(f"blk.{i}.attn_{name}.weight", N_EMBD, N_EMBD, gain=2.0)
        weights.vector(f"blk.{i}.ffn_norm.weight", N_EMBD)
        weights.matrix(f"blk.{i}.ffn_gate.weight", N_FF, N_EMBD)
        weights.matrix(f"blk.{i}.ffn_up.weight", N_FF, N_EMBD)
        weights.matrix(f"blk.{i}.ffn_down.weight", N_EMBD, N_FF, gain=2.0)
    weights.vector("output_norm.weight", N_EMBD)
    weights.rows("output.weight", N_EMBD, 4.0 * vocabulary.loudness)


if __name__ == "__main__":
    tiny.main(ALL)
