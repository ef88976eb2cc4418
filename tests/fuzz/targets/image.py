"""Images of every format that is decoded; half of the PNG files get checksums that match."""

from __future__ import annotations

import io
import struct
import zlib

from PIL import Image

from corral.media.decoded import BadMedia
from corral.media.image import decode_image
from tests.fuzz.mutation import mutated
from tests.fuzz.target import Limit, Target

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def _image(kind: str, mode: str = "RGB", **options: object) -> bytes:
    image, file = Image.linear_gradient("L").resize((24, 16)).convert(mode), io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(file, kind, exif=exif, **options)
    return file.getvalue()


def with_checksums(data: bytes) -> bytes:
    """Repair the checksum of every chunk of a PNG file."""
    if not data.startswith(_SIGNATURE):
        return data
    parts, at = [_SIGNATURE], len(_SIGNATURE)
    while at + 12 <= len(data):
        (n,) = struct.unpack_from(">I", data, at)
        body = data[at + 4 : at + 8 + n]
        parts += [data[at : at + 4], body, struct.pack(">I", zlib.crc32(body))]
        at += 12 + n
    return b"".join(parts) + data[at:]


SEEDS = [
    _image("PNG"),
    _image("PNG", "P"),
    _image("PNG", "RGBA", compress_level=0),
    _image("JPEG"),
    _image("JPEG", progressive=True),
    _image("GIF", "P"),
    _image("WEBP"),
    _image("BMP"),
]
WORDS = [b"IHDR", b"IDAT", b"tEXt", b"zTXt", b"iCCP", b"eXIf", b"acTL", b"\xff\xda", b"\xff\xe1", b"RIFF"]
# The largest image takes half a second and 400 MB, and a few bytes can declare it.
LIMIT = Limit(cpu_s=6.0, mib=700.0)
TARGET = Target("image", decode_image, SEEDS, mutated(SEEDS, WORDS, with_checksums), (BadMedia,), LIMIT)
