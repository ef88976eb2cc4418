"""`data:` URIs as fields of requests, and inside the text of messages."""

from __future__ import annotations

import contextlib

from corral.core.media_item import MediaKind
from corral.media.data_uri import decode_base64, parse_data_uri
from corral.media.decoded import BadMedia
from corral.media.inline import InlineImage, split_inline
from tests.fuzz.mutation import mutated
from tests.fuzz.target import Target


def parse(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for piece in split_inline(text):
        assert piece
        with contextlib.suppress(BadMedia):
            _parse_any(piece.uri if isinstance(piece, InlineImage) else piece)
    _parse_any(text)


def _parse_any(text: str) -> bytes:
    with contextlib.suppress(BadMedia):
        return parse_data_uri(text, MediaKind.AUDIO)
    with contextlib.suppress(BadMedia):
        return decode_base64(text)
    return parse_data_uri(text, MediaKind.IMAGE)


SEEDS = [
    b"data:image/png;base64,iVBORw0KGgo=",
    b"data:audio/wav;charset=utf-8;base64,UklGRg==",
    b"data:image/svg+xml,%3Csvg%20a%3D1%3E",
    b"data:image/png,hello",
    b"aGVsbG8gd29ybGQ=",
]
TEXTS = [
    b"see ![a [b] c](data:image/png;base64,aGVsbG8= \"title\") and <img src='data:image/gif;base64,aGk='>",
    b"a \\![x](<data:image/png,%20>) data:image/png;base64,aGVsbG8= &amp; [y](z)",
]
WORDS = [b"data:image/", b";base64,", b"![", b"](", b"<img ", b"src=", b"&#x", b"%2", b"\\", b"=="]
TARGET = Target("data_uri", parse, SEEDS, mutated(SEEDS + TEXTS, WORDS), (BadMedia,))
