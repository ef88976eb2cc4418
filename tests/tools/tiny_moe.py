"""Writes a tiny mixture of experts: `python -m tests.tools.tiny_moe DIR`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from tests.tools import tiny_models as tiny
from tests.tools.tiny_models import Weights

N_EXPERT = 4
N_USED = 2


def moe(directory: Path) -> Path:
    """A llama whose layers choose two of four experts."""
    return tiny._write(directory / "moe.gguf", tiny._Recipe("llama", 11, tiny._bpe_vocabulary, _add_moe))


def _add_moe(writer: GGUFWriter, weights: Weights) -> None:
    tiny._add_attention_keys(writer)
    writer.add_expert_count(N_EXPERT)
    writer.add_expert_used_count(N_USED)
    for i in range(tiny.N_LAYER):
        tiny._add_attention(weights, i)
        weights.vector(f"blk.{i}.ffn_norm.weight", tiny.N_EMBD)
        weights.matrix(f"blk.{i}.ffn_gate_inp.weight", N_EXPERT, tiny.N_EMBD, gain=2.0)
        _add_experts(weights, f"blk.{i}.ffn_gate_exps.weight", tiny.N_FF, tiny.N_EMBD)
        _add_experts(weights, f"blk.{i}.ffn_up_exps.weight", tiny.N_FF, tiny.N_EMBD)
        _add_experts(weights, f"blk.{i}.ffn_down_exps.weight", tiny.N_EMBD, tiny.N_FF, gain=2.0)


def _add_experts(weights: Weights, name: str, n_out: int, n_in: int, gain: float = 1.0) -> None:
    values = weights._random.standard_normal((N_EXPERT, n_out, n_in))
    weights.exact(name, gain * values / np.sqrt(n_in))


if __name__ == "__main__":
    tiny.main((moe,))
