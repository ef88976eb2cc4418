"""Forms of `/v1/audio/transcriptions`: the type of the content in the first line, then the body."""

from __future__ import annotations

from corral.api.multipart import boundary_of, parse_form
from corral.api.openai.audio import _parse
from corral.core.errors import InvalidRequest
from tests.fuzz.mutation import mutated
from tests.fuzz.target import Target
from tests.tools.form import FORM_WORDS, form, split_form


def parse(data: bytes) -> None:
    kind, body = split_form(data)
    parts = parse_form(body, boundary_of(kind))
    assert all(part.data in body for part in parts)
    _parse(parts)


_FILE = ('name="file"; filename="a.wav"\r\nContent-Type: audio/wav', b"RIFF\0\r\n--X\r\n")
SEEDS = [
    form(_FILE),
    form(_FILE, ('name="model"', b"m"), ('name="temperature"', b"0.5"), ('name="seed"', b"7")),
    form(_FILE, ('name="timestamp_granularities[]"', b"segment"), ('name="response_format"', b"srt")),
    form(("name=file; filename=b", b"x"), ("name=stream", b"true"), ("name=x; filename*=utf-8''%C3", b"")),
]
WORDS = [b"name*0*=utf-8''%ff", b'name="max_tokens"', b"1e999", b"nan", b"[]", b"file", b"\xff"]
TARGET = Target("multipart", parse, SEEDS, mutated(SEEDS, WORDS + FORM_WORDS), (InvalidRequest,))
