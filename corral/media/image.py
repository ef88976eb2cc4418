"""Decode images with Pillow: JPEG, PNG, GIF, WebP and BMP, whatever the declared type.

The size is checked from the header. The largest image takes half a second and about 400 MB: decode in a
thread, and only a few at once.
"""

from __future__ import annotations

import io
import re
import warnings

from PIL import (
    BmpImagePlugin,
    ExifTags,
    GifImagePlugin,
    Image,
    JpegImagePlugin,
    PngImagePlugin,
    UnidentifiedImageError,
    WebPImagePlugin,
)

from corral.core.media_item import MediaKind
from corral.media.decoded import BadMedia, DecodedMedia, reading

MAX_PIXELS = 33_177_600  # 8K
MAX_SIDE = 32_768

_PLUGINS = (
    JpegImagePlugin.JpegImageFile,
    PngImagePlugin.PngImageFile,
    GifImagePlugin.GifImageFile,
    WebPImagePlugin.WebPImageFile,
    BmpImagePlugin.BmpImageFile,
)
_FORMATS = [plugin.format for plugin in _PLUGINS]
_MAX_EXIF_PARTS = 64
_MAX_SCANNED = 128 * MAX_PIXELS
_QUIET = ("ignore", None, Warning, re.compile(r"PIL\."), 0)
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode_image(data: bytes) -> DecodedMedia:
    """Decode the first frame, rotated as its Exif data says, without alpha."""
    if not data:
        raise BadMedia("is empty")
    _silence_pillow()
    with reading(), _open(data) as image:
        _check_size(*image.size)
        _check_scans(data, image.width * image.height)
        image.load()
        picture = _turn(_to_rgb(image), _read_orientation(image))
        return DecodedMedia(MediaKind.IMAGE, picture.width, picture.height, picture.tobytes())


def _open(data: bytes) -> Image.Image:
    """Open the image, reading only the header."""
    if _is_jpeg(data) and data.count(b"Exif\0\0") > _MAX_EXIF_PARTS:  # Pillow joins them in quadratic time
        raise BadMedia(f"cannot be read: its metadata has more than {_MAX_EXIF_PARTS} entries")
    try:
        return Image.open(io.BytesIO(data), formats=_FORMATS)
    except Image.DecompressionBombError:
        raise _too_large() from None
    except UnidentifiedImageError:
        raise BadMedia("cannot be read: it is not a JPEG, PNG, GIF, WebP or BMP image") from None


def _check_size(width: int, height: int) -> None:
    if width < 1 or height < 1:
        raise BadMedia("has no pixels")
    if max(width, height) > MAX_SIDE or width * height > MAX_PIXELS:
        raise _too_large()


def _too_large() -> BadMedia:
    return BadMedia(f"is too large: the limits are {MAX_SIDE} pixels per side and {MAX_PIXELS} pixels")


def _check_scans(data: bytes, n_pixels: int) -> None:
    """Limit the scans of a progressive JPEG: each passes over all pixels, even with only a few bytes."""
    if _is_jpeg(data) and data.count(b"\xff\xda") * n_pixels > _MAX_SCANNED:
        raise BadMedia("cannot be read: it has too many scans")


def _is_jpeg(data: bytes) -> bool:
    return data.startswith(b"\xff\xd8\xff")


def _to_rgb(image: Image.Image) -> Image.Image:
    image.info.pop("transparency", None)  # otherwise Pillow adds an alpha channel
    if image.mode.startswith("I;16"):  # Pillow would clip it to eight bits
        low_first = image.tobytes("raw", "I;16")
        return Image.frombytes("L", image.size, low_first[1::2]).convert("RGB")
    return image.convert("RGB")


def _read_orientation(image: Image.Image) -> int:
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # broken metadata does not make an image unreadable
        return 1
    return orientation if isinstance(orientation, int) else 1


def _turn(image: Image.Image, orientation: int) -> Image.Image:
    turn = _TURNS.get(orientation)
    return image if turn is None else image.transpose(turn)


def _silence_pillow() -> None:
    """Ignore Pillow's warnings about metadata: where warnings are errors, they would refuse valid images.

    The filter is permanent, since `warnings.catch_warnings` is not thread-safe.
    """
    if _QUIET not in warnings.filters:
        warnings.filterwarnings("ignore", module=r"PIL\.")
