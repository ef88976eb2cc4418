"""Decoded images and audio, and the error for media that cannot be decoded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from corral.core.errors import InvalidRequest
from corral.core.media_item import MediaKind

MAX_BYTES = 32 << 20  # of one encoded item


@dataclass(frozen=True, slots=True)
class DecodedMedia:
    """Rows of RGB bytes, or 32-bit little-endian floats of one channel (`height` is 1)."""

    kind: MediaKind
    width: int  # of audio: the number of samples
    height: int
    data: bytes


class BadMedia(InvalidRequest):
    """One item is invalid. The message continues "image 2: "."""


def too_large(max_bytes: int = MAX_BYTES) -> BadMedia:
    return BadMedia(f"it is larger than {max_bytes >> 20} MiB")


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Convert all exceptions of a decoder to `BadMedia`, without their texts, which may contain addresses."""
    try:
        yield
    except BadMedia:
        raise
    except Exception:  # a damaged file can raise almost anything
        raise BadMedia("cannot be read: the file is damaged or truncated") from None
