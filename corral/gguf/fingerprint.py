"""Distinguish files without reading all of them."""

from __future__ import annotations

import os

import xxhash

_HEAD_BYTES = 4 << 20  # covers the metadata of most files
_N_SAMPLES = 64
_SAMPLE_BYTES = 64 << 10


def fingerprint(path: str) -> bytes:
    """Return 16 bytes derived from a file's size, its beginning, and samples of its weights."""
    with open(path, "rb") as file:
        n_bytes = os.fstat(file.fileno()).st_size
        digest = xxhash.xxh3_128(n_bytes.to_bytes(8, "little"))
        digest.update(file.read(_HEAD_BYTES))
        for i in range(_N_SAMPLES):
            file.seek(i * max(0, n_bytes - _SAMPLE_BYTES) // _N_SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))
        file.seek(max(0, n_bytes - _SAMPLE_BYTES))
        digest.update(file.read(_SAMPLE_BYTES))
    return digest.digest()
