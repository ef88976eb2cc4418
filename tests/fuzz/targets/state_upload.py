"""Bodies of `restore-state`: base64 in JSON, decoded as it is read, with the result of a plain decoder."""

from __future__ import annotations

import base64
import os

import orjson

from corral.core.errors import InvalidRequest
from corral.storage.blob import Blob, decode_state
from tests.fuzz.mutation import mutated
from tests.fuzz.target import Target

_MAX_JSON_BYTES = 1 << 20


def parse(data: bytes) -> None:
    with Blob.create() as body:
        body.write(data)
        with decode_state(body, _MAX_JSON_BYTES) as state:
            found = os.pread(state.fd, state.n_bytes, 0)
    assert found == base64.b64decode(orjson.loads(data)["state"], validate=True)


_TEXT = base64.b64encode(bytes(range(100)))
SEEDS = [b'{"state": "' + _TEXT + b'"}', b'{"a": 1, "state": "AA\\/+"}', b' {\n"state":"AAA="}\n']
WORDS = [b"\\/", b"=", b"==", b'"', b"}", b"\\u0041", b'"state":', b"\\"]
TARGET = Target("state_upload", parse, SEEDS, mutated(SEEDS, WORDS), (InvalidRequest,))
