"""A tiny model with latent attention."""

from __future__ import annotations

import numpy as np

from tests.tools import tiny_models as tiny


def add_deepseek2(writer, weights):
    """Latent attention: keys that are values too."""
    n_lora, n_rope, n_nope, n_head_v = 32, 16, 16, 16
    writer.add_head_count(tiny.N_HEAD)
    writer.add_head_count_kv(1)
    writer.add_feed_forward_length(tiny.N_FF)
    writer.add_expert_feed_forward_length(tiny.N_FF)
    writer.add_expert_shared_count(1)
    writer.add_leading_dense_block_count(tiny.N_LAYER)
    writer.add_q_lora_rank(n_lora)
    writer.add_kv_lora_rank(n_lora)
    writer.add_key_length(n_lora + n_rope)
    writer.add_value_length(n_lora)
    writer.add_key_length_mla(n_rope + n_nope)
    writer.add_value_length_mla(n_head_v)
    writer.add_rope_dimension_count(n_rope)
    random = np.random.RandomState(0)
    for i in range(tiny.N_LAYER):
        weights.vector(f"blk.{i}.attn_norm.weight", tiny.N_EMBD)
        weights.vector(f"blk.{i}.attn_q_a_norm.weight", n_lora)
        weights.vector(f"blk.{i}.attn_kv_a_norm.weight", n_lora)
        weights.matrix(f"blk.{i}.attn_q_a.weight", n_lora, tiny.N_EMBD)
        weights.matrix(f"blk.{i}.attn_q_b.weight", tiny.N_HEAD * (n_rope + n_nope), n_lora, gain=2.0)
        weights.matrix(f"blk.{i}.attn_kv_a_mqa.weight", n_lora + n_rope, tiny.N_EMBD, gain=2.0)
        weights.exact(f"blk.{i}.attn_k_b.weight", random.standard_normal((tiny.N_HEAD, n_lora, n_nope)) / 4)
        weights.exact(f"blk.{i}.attn_v_b.weight", random.standard_normal((tiny.N_HEAD, n_head_v, n_lora)) / 4)
        weights.matrix(f"blk.{i}.attn_output.weight", tiny.N_EMBD, tiny.N_HEAD * n_head_v)
        add_ffn(weights, i)


def add_ffn(weights, i):
    weights.vector(f"blk.{i}.ffn_norm.weight", tiny.N_EMBD)
    weights.matrix(f"blk.{i}.ffn_gate.weight", tiny.N_FF, tiny.N_EMBD)
    weights.matrix(f"blk.{i}.ffn_up.weight", tiny.N_FF, tiny.N_EMBD)
    weights.matrix(f"blk.{i}.ffn_down.weight", tiny.N_EMBD, tiny.N_FF)
