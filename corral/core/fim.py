"""The special tokens of infill prompts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FimTokens:
    """The three that infilling needs, then those for repositories. None: the model has no such token."""

    pre: int | None = None
    suf: int | None = None
    mid: int | None = None
    rep: int | None = None
    sep: int | None = None
    pad: int | None = None
