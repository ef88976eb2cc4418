"""What changes a model without being in its file: adapters, control vectors, overridden metadata."""

from __future__ import annotations

import msgspec


class ScaledFile(msgspec.Struct, frozen=True):
    """A file, and how strongly what is in it counts."""

    path: str
    scale: float = 1.0


class Override(msgspec.Struct, frozen=True):
    """Metadata of a model, as if it were in its file."""

    key: str
    value: int | float | bool | str
