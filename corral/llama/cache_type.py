"""KV cache types by the names of `--cache-type-k` and `--cache-type-v`."""

from __future__ import annotations

from corral.gguf.ggml_type import GGML_TYPES

_NUMBERS = {kind.name: number for number, kind in GGML_TYPES.items()}


def type_number(name: str) -> int:
    """Return libllama's number of the type."""
    return _NUMBERS[name]


def block_size(name: str) -> int:
    """Return the number of values per block."""
    return GGML_TYPES[_NUMBERS[name]].n_values


def is_quantized(name: str) -> bool:
    return block_size(name) > 1
