"""Writes tiny models whose keys and values can be quantized: `python -m tests.tools.tiny_heads DIR`.

Random as in `tiny_models`. libllama rotates what it quantizes where heads have 64 dimensions, and others not.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gguf import GGUFWriter

from tests.tools import tiny_models as tiny
from tests.tools.tiny_models import N_EMBD, N_FF, N_LAYER, Weights

N_HEAD = 2
N_HEAD_KV = 1
N_ROT = 16


def heads_32(directory: Path) -> Path:
    """A llama with heads of 32 dimensions."""
    recipe = tiny._Recipe("llama", 71, tiny._bpe_vocabulary, _llama(32))
    return tiny._write(directory / "heads-32.gguf", recipe)


def heads_64(directory: Path) -> Path:
    """A llama with heads of 64 dimensions."""
    recipe = tiny._Recipe("llama", 72, tiny._bpe_vocabulary, _llama(64))
    return tiny._write(directory / "heads-64.gguf", recipe)


def half_turned(directory: Path) -> Path:
    """A stablelm with heads of 32 dimensions, of which positions turn the first `N_ROT`."""
    recipe = tiny._Recipe("stablelm", 73, tiny._bpe_vocabulary, _add_stablelm)
    return tiny._write(directory / "half-turned.gguf", recipe)


ALL = (heads_32, heads_64, half_turned)


def _llama(n_embd_head: int) -> Callable[[GGUFWriter, Weights], None]:
    def add_model(writer: GGUFWriter, weights: Weights) -> None:
        _add_keys(writer, n_embd_head, n_embd_head)
        for i in range(N_LAYER):
            _add_layer(weights, i, n_embd_head)

    return add_model


def _add_stablelm(writer: GGUFWriter, weights: Weights) -> None:
    _add_keys(writer, 32, N_ROT)
    writer.add_layer_norm_eps(1e-5)
    for i in range(N_LAYER):
        _add_layer(weights, i, 32)
        weights.vector(f"blk.{i}.attn_norm.bias", N_EMBD, 0.0)
        weights.vector(f"blk.{i}.ffn_norm.bias", N_EMBD, 0.0)
    weights.vector("output_norm.bias", N_EMBD, 0.0)


def _add_keys(writer: GGUFWriter, n_embd_head: int, n_rot: int) -> None:
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD_KV)
    writer.add_key_length(n_embd_head)
    writer.add_value_length(n_embd_head)
    writer.add_rope_dimension_count(n_rot)
    writer.add_rope_freq_base(10000.0)


def _add_layer(weights: Weights, i: int, n_embd_head: int) -> None:
    weights.vector(f"blk.{i}.attn_norm.weight", N_EMBD)
    weights.matrix(f"blk.{i}.attn_q.weight", N_HEAD * n_embd_head, N_EMBD, gain=2.0)
    weights.matrix(f"blk.{i}.attn_k.weight", N_HEAD_KV * n_embd_head, N_EMBD, gain=2.0)
    weights.matrix(f"blk.{i}.attn_v.weight", N_HEAD_KV * n_embd_head, N_EMBD, gain=2.0)
    weights.matrix(f"blk.{i}.attn_output.weight", N_EMBD, N_HEAD * n_embd_head)
    weights.vector(f"blk.{i}.ffn_norm.weight", N_EMBD)
    weights.matrix(f"blk.{i}.ffn_gate.weight", N_FF, N_EMBD)
    weights.matrix(f"blk.{i}.ffn_up.weight", N_FF, N_EMBD)
    weights.matrix(f"blk.{i}.ffn_down.weight", N_EMBD, N_FF, gain=2.0)


if __name__ == "__main__":
    tiny.main(ALL)
