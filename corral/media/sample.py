"""Decoded images and audio, and the error for what cannot be decoded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from corral.core.errors import InvalidRequest
from corral.core.media_item import MediaKind

MAX_BYTES = 32 << 20  # of one item, encoded


@dataclass(frozen=True, slots=True)
class Sample:
    """Rows of RGB bytes, or the 32-bit little-endian floats of one channel (`height` is 1)."""

    kind: MediaKind
    width: int  # of sound: how many samples
    height: int
    data: bytes


class BadMedia(InvalidRequest):
    """The message says what is wrong with one item, in words that continue "image 2: "."""


def too_large() -> BadMedia:
    return BadMedia(f"it is larger than {MAX_BYTES >> 20} MiB")


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Whatever a decoder raises becomes `BadMedia`, without its text, which may hold addresses."""
    try:
        yield
    except BadMedia:
        raise
    except Exception:  # a damaged file can make a decoder raise almost anything
        raise BadMedia("cannot be read: the file is damaged or cut short") from None
