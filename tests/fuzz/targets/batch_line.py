"""Input files of batches: a line is accepted or named with its error; what is accepted can be sent."""

from __future__ import annotations

import tempfile
from pathlib import Path

import orjson

from corral.features.batches.line import check_lines, parse_line, read_line
from tests.fuzz.mutation import either, mutated
from tests.fuzz.target import Target
from tests.fuzz.value_mutation import mutated_values

_ENDPOINT = "/v1/chat/completions"
_DIRECTORY = tempfile.TemporaryDirectory(prefix="fuzz-batch-")
_PATH = Path(_DIRECTORY.name) / "input.jsonl"


def parse(data: bytes) -> None:
    _PATH.write_bytes(data)
    checked = check_lines(_PATH, _ENDPOINT)
    for line in checked.lines:
        id, body = parse_line(read_line(_PATH, line))
        assert id == line.custom_id
        assert isinstance(orjson.loads(body), dict)
    if checked.errors:
        orjson.dumps(checked.errors)
        raise ValueError


_BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
_LINE = {"custom_id": "a", "method": "POST", "url": _ENDPOINT, "body": _BODY}
SEEDS = [
    orjson.dumps(_LINE),
    b"\n".join(orjson.dumps({**_LINE, "custom_id": id}) for id in "abc") + b"\r\n\r\n",
    orjson.dumps({"custom_id": "b", "body": {}}) + b"\n",
]
WORDS = [b"\n", b"\\ud800", b"\xef\xbb\xbf", b"[" * 300, b'"stream": true,', b'"custom_id": ""', b"1e999"]
CASES = either(mutated(SEEDS, WORDS), mutated_values([_LINE], [*_LINE, *_BODY, "tools", "stream"]))
TARGET = Target("batch_line", parse, SEEDS, CASES, (ValueError,))
