"""Estimate the size of a model in another encoding from its headers, before anything is written.

libllama chooses the type of each tensor. This module knows its rules only as far as an upper bound needs
them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from corral.gguf.ggml_type import GGML_TYPES, GgmlType
from corral.gguf.preflight import GgufHeader, TensorInfo, padded

_ALIGNMENT = 32  # libllama's
_INFO_BYTES = 64  # per tensor in the header, without its name
_MARGIN_BYTES = 4096  # keys that libllama adds
_F16, _Q8_0 = GGML_TYPES[1], GGML_TYPES[8]
_LARGEST = {  # if libllama mixes types, the largest of them
    "Q2_K": "q4_K",
    "Q3_K_S": "q3_K",
    "Q3_K_M": "q5_K",
    "Q3_K_L": "q5_K",
    "Q4_K_S": "q5_K",
    "Q4_K_M": "q6_K",
    "Q5_K_S": "q5_K",
    "Q5_K_M": "q6_K",
    "Q6_K": "q6_K",
    "IQ4_NL": "q5_K",
    "IQ4_XS": "q5_K",
}
_WITH_TOKENS = ("token_embd.weight", "output.weight")
_MORE_WITH_EXPERTS = ("attn_k.", "attn_v.", "attn_qkv.", "attn_kv_b.")
_SPARED = (  # parts of names of tensors that may keep their type
    "_norm.",
    "ffn_gate_inp",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "position_embd",
    "token_types",
    "conv",
    "indexer",
    "time_mix",
    "attn_rel_b",
    "hc_",
)
_BY_NAME = {kind.name: kind for kind in GGML_TYPES.values()}


def estimated_bytes(headers: Sequence[GgufHeader], file_type: str) -> int:
    """Return an upper bound of the size of a model with these headers as one file of this type."""
    kind = _BY_NAME[_LARGEST.get(file_type, file_type.lower())]
    has_experts = headers[0].metadata.get(f"{headers[0].architecture}.expert_count") == 8
    finer = _WITH_TOKENS + (_MORE_WITH_EXPERTS if has_experts else ())
    n_bytes = headers[0].infos_offset + _MARGIN_BYTES
    for header in headers:
        for name, tensor in header.tensors.items():
            is_finer = any(part in name for part in finer)
            n_data_bytes = _most_bytes(name, tensor, _larger(kind, _Q8_0) if is_finer else kind)
            n_bytes += _INFO_BYTES + len(name.encode()) + padded(n_data_bytes, _ALIGNMENT)
    return n_bytes


def _most_bytes(name: str, tensor: TensorInfo, kind: GgmlType) -> int:
    if not name.endswith("weight") or math.prod(tensor.shape) == tensor.shape[0]:
        return tensor.n_bytes
    n_row = tensor.shape[0]
    if n_row % kind.n_values:  # libllama uses another type instead
        kind = _larger(kind, _F16 if n_row % _Q8_0.n_values else _Q8_0)
    n_bytes = math.ceil(math.prod(tensor.shape) * kind.n_bytes / kind.n_values)
    return max(n_bytes, tensor.n_bytes) if any(part in name for part in _SPARED) else n_bytes


def _larger(one: GgmlType, other: GgmlType) -> GgmlType:
    return max(one, other, key=lambda kind: kind.n_bytes / kind.n_values)
