"""Forms of `/v1/files`, read by python-multipart: the type of content in the first line, then the body."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

import orjson

from corral.core.errors import InvalidRequest
from corral.features.batches.file_routes import _parse
from corral.features.batches.render import render_file
from corral.features.batches.upload import read_form
from tests.fuzz.mutation import mutated
from tests.fuzz.target import Target
from tests.tools.form import FORM_WORDS, form, split_form

T = TypeVar("T")
logging.getLogger("python_multipart").setLevel(logging.ERROR)  # has a line for every case


def parse(data: bytes) -> None:
    kind, body = split_form(data)
    _finish(_upload(kind, [body[: len(body) // 3], body[len(body) // 3 :]]))


async def _upload(kind: str, pieces: list[bytes]) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async with read_form(kind, parts()) as given:
        file, content = _parse(given)
        assert file.n_bytes == len(content.file.read())
        orjson.dumps(render_file(file))


def _finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run what never waits: files as small as a case are kept in memory."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waits")


_FILE = ('name="file"; filename="a.jsonl"\r\nContent-Type: application/jsonl', b'{"a": 1}\r\n--X\r\n')
_PURPOSE = ('name="purpose"', b"batch")
_KIND = "multipart/form-data; charset={}; boundary=XX"
SEEDS = [
    form(_PURPOSE, _FILE),
    form(_PURPOSE, _FILE, ('name="expires_after[anchor]"', b"x"), ('name="expires_after[seconds]"', b"7200")),
    form(_FILE, _PURPOSE, kind=_KIND.format("unicode_escape")),
]
WORDS = [b"charset=idna", b"charset=utf-7", b"charset=utf-16", b"charset=undefined", b"\\ud800", b"xn--"]
WORDS += [b"Content-Transfer-Encoding: base64", b"filename=", b"expires_after[seconds]", b"purpose"]
TARGET = Target("upload", parse, SEEDS, mutated(SEEDS, WORDS + FORM_WORDS), (InvalidRequest,))
