"""Writes tiny models with attention and a recurrent state: `python -m tests.tools.tiny_hybrid DIR`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter, LlamaFileType

from tests.tools import tiny_models as tiny
from tests.tools.tiny_deepseek2 import add_ffn
from tests.tools.tiny_models import Weights


def jamba(directory: Path) -> Path:
    """A recurrent layer, then one with attention."""
    recipe = tiny._Recipe("jamba", 3, tiny._bpe_vocabulary, add_jamba)
    return tiny._write(directory / "jamba.gguf", recipe)


ALL = (tiny.mamba, tiny.gemma_swa, jamba)  # one of each memory that cannot be cut everywhere


def add_jamba(writer: GGUFWriter, weights: Weights) -> None:
    writer.add_head_count_kv([0, tiny.N_HEAD_KV])
    writer.add_head_count(tiny.N_HEAD)
    writer.add_feed_forward_length(tiny.N_FF)
    writer.add_ssm_conv_kernel(tiny.D_CONV)
    writer.add_ssm_inner_size(tiny.D_INNER)
    writer.add_ssm_state_size(tiny.D_STATE)
    writer.add_ssm_time_step_rank(tiny.DT_RANK)
    tiny._add_mamba_layer(weights, 0)
    weights.vector("blk.0.ssm_dt_norm.weight", tiny.DT_RANK)
    weights.vector("blk.0.ssm_b_norm.weight", tiny.D_STATE)
    weights.vector("blk.0.ssm_c_norm.weight", tiny.D_STATE)
    add_ffn(weights, 0)
    tiny._add_attention_layer(weights, 1)


def hybrid(directory: Path) -> Path:
    """A jamba of some size, to measure with: every fourth layer has attention."""
    return tiny.write_file(directory / "hybrid.gguf", "jamba", _fill_hybrid)


def _fill_hybrid(writer: GGUFWriter) -> None:
    n_layer, n_embd, n_head, n_ff, n_rank = 8, 512, 8, 1024, 32
    vocabulary, weights = tiny._bpe_vocabulary(), Weights(writer, 5)
    writer.add_name("hybrid")
    writer.add_file_type(LlamaFileType.ALL_F32)
    writer.add_context_length(4096)
    writer.add_embedding_length(n_embd)
    writer.add_block_count(n_layer)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_head_count_kv([0 if i % 4 < 3 else n_head for i in range(n_layer)])
    writer.add_head_count(n_head)
    writer.add_feed_forward_length(n_ff)
    writer.add_ssm_conv_kernel(tiny.D_CONV)
    writer.add_ssm_inner_size(2 * n_embd)
    writer.add_ssm_state_size(tiny.D_STATE)
    writer.add_ssm_time_step_rank(n_rank)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    vocabulary.add_keys(writer)
    weights.matrix("token_embd.weight", len(vocabulary.tokens), n_embd, gain=16.0)
    for i in range(n_layer):
        weights.vector(f"blk.{i}.attn_norm.weight", n_embd)
        if i % 4 < 3:
            _add_recurrent(weights, f"blk.{i}.ssm_", n_embd, n_rank)
        else:
            for name in ("q", "k", "v", "output"):
                weights.matrix(f"blk.{i}.attn_{name}.weight", n_embd, n_embd)
        weights.vector(f"blk.{i}.ffn_norm.weight", n_embd)
        weights.matrix(f"blk.{i}.ffn_gate.weight", n_ff, n_embd)
        weights.matrix(f"blk.{i}.ffn_up.weight", n_ff, n_embd)
        weights.matrix(f"blk.{i}.ffn_down.weight", n_embd, n_ff)
    weights.vector("output_norm.weight", n_embd)
    weights.rows("output.weight", n_embd, 4.0 * vocabulary.loudness)


def _add_recurrent(weights: Weights, layer: str, n_embd: int, n_rank: int) -> None:
    n_inner = 2 * n_embd
    weights.matrix(f"{layer}in.weight", 2 * n_inner, n_embd)
    weights.matrix(f"{layer}conv1d.weight", n_inner, tiny.D_CONV)
    weights.vector(f"{layer}conv1d.bias", n_inner, 0.0)
    weights.matrix(f"{layer}x.weight", n_rank + 2 * tiny.D_STATE, n_inner)
    weights.matrix(f"{layer}dt.weight", n_inner, n_rank)
    weights.vector(f"{layer}dt.bias", n_inner, -3.0)
    weights.vector(f"{layer}dt_norm.weight", n_rank)
    weights.vector(f"{layer}b_norm.weight", tiny.D_STATE)
    weights.vector(f"{layer}c_norm.weight", tiny.D_STATE)
    weights.exact(f"{layer}a", -np.tile(np.arange(1.0, tiny.D_STATE + 1), (n_inner, 1)))
    weights.vector(f"{layer}d", n_inner)
    weights.matrix(f"{layer}out.weight", n_embd, n_inner)


if __name__ == "__main__":
    tiny.main(ALL)
