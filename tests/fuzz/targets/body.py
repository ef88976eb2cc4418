"""Bodies of requests: parsed in pieces, with the result of a parser that reads them at once."""

from __future__ import annotations

from typing import Any
from unittest import mock

import orjson

from corral.api import json_pieces
from corral.api.json_pieces import NotJson, parse_pieces
from corral.core.errors import InvalidRequest
from corral.text import json_depth
from corral.text.json_depth import JsonGuard
from tests.fuzz.mutation import mutated
from tests.fuzz.target import Target


def parse(data: bytes) -> None:
    guard, n_slice = JsonGuard(), max(8, len(data) // 64)  # only very long texts are cut otherwise
    with (
        mock.patch.object(json_depth, "SLICE_BYTES", n_slice),
        mock.patch.object(json_pieces, "SLICE_BYTES", n_slice),
        mock.patch.object(json_pieces, "_LONG_BYTES", n_slice * 3 // 2),
    ):
        guard.feed(data[: len(data) // 3])
        guard.feed(data[len(data) // 3 :])
        guard.finish(is_long=True)
        found = _load(parse_pieces, bytearray(data), guard.cuts)
        if found is _NOT_JSON and len(data) > json_pieces._KEY_BYTES:  # names of fields have a limit
            raise NotJson
        assert found == _load(orjson.loads, data)
    if isinstance(_load(orjson.loads, data), NotJson):
        raise NotJson


def _load(parser: Any, *args: Any) -> Any:
    """Return the value as text, which tells 1 from 1.0 and from True; or that there is none."""
    try:
        return repr(parser(*args))
    except (NotJson, orjson.JSONDecodeError):
        return _NOT_JSON


_NOT_JSON = NotJson()
SEEDS = [
    orjson.dumps({"prompt": 'a "b" \\ é🤗', "n": [1, 2.5, -3e7, None, True], "o": {"k": {"": []}}}),
    b'{"a":"\\ud83e\\udd17 \\u00e9\\n\\/", "b":[[],[[1],{"c":"d,e"}]] , "a":2}',
    b'[{"role":"user","content":"hello, world, hello, world"},{"role":"x","content":"[{,}]"}]',
]
WORDS = [
    b"\\ud83e",
    b"\\",
    b'"',
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b":",
    b"null",
    b"-",
    b"1e999",
    b"\xef\xbb\xbf",
]
TARGET = Target("body", parse, SEEDS, mutated(SEEDS, WORDS), (InvalidRequest, NotJson))
