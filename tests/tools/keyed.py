"""Randomness for fakes: a number in [0, 1) that depends on (seed, token index, stream) alone."""

from __future__ import annotations

import hashlib
import struct

_pack = struct.Struct("<QQQ").pack


def uniform(seed: int, index: int, stream: int = 0) -> float:
    digest = hashlib.blake2b(_pack(seed, index, stream), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53
