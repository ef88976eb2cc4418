"""Changes to a model from outside its file: adapters, control vectors, overridden metadata."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

# Adapter ids with their scales, sorted by id; no scale is 0.
AdapterConfig: TypeAlias = tuple[tuple[int, float], ...]


class ScaledFile(msgspec.Struct, frozen=True):
    """A file, and the scale it is applied with."""

    path: str
    scale: float = 1.0


class AdapterInfo(msgspec.Struct, frozen=True):
    """A LoRA adapter, or why it could not be loaded."""

    id: int
    path: str
    task_name: str = ""
    prompt_prefix: str = ""
    error: str = ""


class TensorPlace(msgspec.Struct, frozen=True):
    """The memory for tensors whose names match a regular expression, by the name of its buffer type."""

    pattern: str
    buffer_type: str


class Override(msgspec.Struct, frozen=True):
    """A metadata value that replaces the one in the model file."""

    key: str
    value: int | float | bool | str
