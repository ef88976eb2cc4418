"""What changes a model without being in its file: adapters, control vectors, overridden metadata."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

# Adapters by id with their scales: in order of ids, none of the scales is 0.
AdapterConfig: TypeAlias = tuple[tuple[int, float], ...]


class ScaledFile(msgspec.Struct, frozen=True):
    """A file, and how strongly what is in it counts."""

    path: str
    scale: float = 1.0


class AdapterInfo(msgspec.Struct, frozen=True):
    """A LoRA adapter, or why it could not be loaded."""

    id: int
    path: str
    task_name: str = ""
    prompt_prefix: str = ""
    error: str = ""


class Override(msgspec.Struct, frozen=True):
    """Metadata of a model, as if it were in its file."""

    key: str
    value: int | float | bool | str
