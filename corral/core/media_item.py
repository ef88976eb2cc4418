"""A picture or a sound of a prompt; how it looks among tokens is said in `media`."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec


class MediaKind(str, enum.Enum):
    IMAGE = "image"
    AUDIO = "audio"


class MediaItem(msgspec.Struct, frozen=True, kw_only=True):
    """A picture, or a sound of `width` samples. Its bytes, rows of RGB or 32-bit floats, begin at `start` of
    the file that comes with it."""

    kind: MediaKind
    width: int
    height: int
    digest: bytes  # of all that
    start: int = 0
    n_runs: int = 0  # of tokens that it has become

    @property
    def n_bytes(self) -> int:
        return self.width * (4 if self.kind is MediaKind.AUDIO else 3 * self.height)


def text_tokens(tokens: Sequence[int]) -> list[int]:
    """What is left without media, whose tokens are negative."""
    return [token for token in tokens if token >= 0]
