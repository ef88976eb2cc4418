"""Pictures and sounds for tests, as arrays and as the media of a prompt."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import tempfile
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image

from corral.core.media_item import MediaItem, MediaKind

Pixels = npt.NDArray[np.uint8]


def solid(red: int, green: int, blue: int, width: int = 32, height: int = 32) -> Pixels:
    return np.full((height, width, 3), (red, green, blue), np.uint8)


def noise(seed: int, width: int = 32, height: int = 32) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


RED, BLUE = solid(255, 0, 0), solid(0, 0, 255)


def png(pixels: Pixels, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def data_uri(pixels: Pixels) -> str:
    return "data:image/png;base64," + base64.b64encode(png(pixels)).decode()


def media_of(arrays: Sequence[npt.NDArray[np.generic]]) -> tuple[list[MediaItem], int]:
    """Media of a prompt, and a file with their bytes; pictures have rows, sounds are flat."""
    media, start = [], 0
    fd, path = tempfile.mkstemp()
    os.unlink(path)
    for array in arrays:
        is_image = array.ndim == 3
        data = array.tobytes()
        medium = MediaItem(
            kind=MediaKind.IMAGE if is_image else MediaKind.AUDIO,
            width=array.shape[1] if is_image else len(array),
            height=array.shape[0] if is_image else 1,
            digest=hashlib.blake2b(data + b"%d" % array.shape[0], digest_size=16).digest(),
            start=start,
        )
        media.append(medium)
        os.write(fd, data)
        start += len(data)
    return media, fd


def described_of(*arrays) -> list[MediaItem]:
    """Media without their file."""
    media, fd = media_of(arrays)
    os.close(fd)
    return media


def is_closed(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return True
    return False
