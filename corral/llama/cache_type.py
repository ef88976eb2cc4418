"""The types that keys and values can have in a context, by the names of `--cache-type-k` and `-v`."""

from __future__ import annotations

from corral.gguf.ggml_type import GGML_TYPES

_NUMBERS = {kind.name: number for number, kind in GGML_TYPES.items()}


def type_number(name: str) -> int:
    """As libllama counts them."""
    return _NUMBERS[name]


def block_size(name: str) -> int:
    """How many values are stored together."""
    return GGML_TYPES[_NUMBERS[name]].n_values


def is_quantized(name: str) -> bool:
    return block_size(name) > 1
