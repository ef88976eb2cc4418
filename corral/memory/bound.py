"""Compute an upper bound of a model's memory from its file, to see quickly that there is enough."""

from __future__ import annotations

from collections.abc import Sequence

from corral.gguf.preflight import GgufHeader

_FLOAT = 4  # bytes
_N_SCORES = 3  # multiples of the attention scores, if they are computed at once
_N_ACTIVATIONS = 8  # multiples of the widest row
_RUNNING = ("ssm.", "wkv", "shortconv", "linear_attn")  # keys of models with a recurrent state


def upper_bound(
    headers: Sequence[GgufHeader], *, n_ctx: int, n_ubatch: int, n_seq: int, n_value_bytes: int
) -> int | None:
    """Return the bound of weights, cache and computation; None if the file does not provide the numbers."""
    header = headers[0]
    prefix = f"{header.architecture}."
    keys = [key.removeprefix(prefix) for key in header.metadata if key.startswith(prefix)]
    n_embd, n_layer = _number(header, "embedding_length"), _number(header, "block_count")
    n_head = _number(header, "attention.head_count")
    if not (n_embd and n_layer and n_head and n_ctx) or any(key.startswith(_RUNNING) for key in keys):
        return None
    n_head_kv = _number(header, "attention.head_count_kv") or n_head
    n_key = _number(header, "attention.key_length") or n_embd // n_head
    n_value = _number(header, "attention.value_length") or n_embd // n_head
    tensors = [tensor for part in headers for tensor in part.tensors.values()]
    n_widest = max(max(tensor.shape[:2]) for tensor in tensors)
    weights = sum(tensor.n_bytes for tensor in tensors) + max(tensor.n_bytes for tensor in tensors)
    cache = n_layer * n_ctx * n_head_kv * (n_key + n_value) * n_value_bytes
    scores = n_ubatch * n_ctx * n_head * _FLOAT * _N_SCORES
    activations = (n_ubatch + n_seq) * n_widest * _FLOAT * _N_ACTIVATIONS
    return weights + cache + scores + activations


def trained_ctx(headers: Sequence[GgufHeader]) -> int:
    """Return the context size of the training; 0 if unknown."""
    return _number(headers[0], "context_length")


def _number(header: GgufHeader, key: str) -> int:
    """Return a number of the metadata, the maximum if it differs by layer; 0 if missing."""
    value = header.metadata.get(f"{header.architecture}.{key}", 0)
    values = value if isinstance(value, tuple) else (value,)
    return max((n for n in values if isinstance(n, int)), default=0)
