"""Tell whether two model files tokenize alike and have the same chat template."""

from __future__ import annotations

import hashlib
import mmap

from corral.gguf.reader import GgufReader

_PREFIX = "tokenizer."
_MAX_KEY_BYTES = 65535


def tokenizer_digest(path: str) -> bytes:
    """Return a hash of all that a checked file says about its tokenizer, in any order."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        values = dict(_read_values(data))
    digest = hashlib.sha256()
    for key in sorted(values):
        digest.update(key.encode() + values[key])
    return digest.digest()


def _read_values(data: mmap.mmap) -> list[tuple[str, bytes]]:
    reader, found = GgufReader(data), []
    reader.take(4)  # the magic number
    reader.u32()
    reader.u64()
    for _ in range(reader.u64()):
        key = reader.name("a key", _MAX_KEY_BYTES)
        start = reader.offset
        reader.value(key, reader.value_type(key))
        if key.startswith(_PREFIX):
            found.append((key, hashlib.sha256(data[start : reader.offset]).digest()))
    return found
