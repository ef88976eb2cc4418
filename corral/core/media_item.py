"""An image or audio clip of a prompt; `media` defines its tokens."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec


class MediaKind(str, enum.Enum):
    IMAGE = "image"
    AUDIO = "audio"


class MediaItem(msgspec.Struct, frozen=True, kw_only=True):
    """An image, or audio with `width` samples. Its bytes, rows of RGB or 32-bit floats, begin at `start` of
    the file that comes with it."""

    kind: MediaKind
    width: int
    height: int
    digest: bytes  # of kind, size, content and tenant
    start: int = 0
    n_runs: int = 0  # runs of tokens that it takes

    @property
    def n_bytes(self) -> int:
        return self.width * (4 if self.kind is MediaKind.AUDIO else 3 * self.height)


def text_tokens(tokens: Sequence[int]) -> list[int]:
    """Return the tokens without media placeholders, which are negative."""
    return [token for token in tokens if token >= 0]
