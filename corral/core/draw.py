"""Counter-based randomness: a number in [0, 1) that depends on (seed, token index, stream) alone.

Nothing is carried from one draw to the next, so a sequence of draws can be resumed anywhere.
"""

from __future__ import annotations

import hashlib
import struct

_pack = struct.Struct("<QQQ").pack


def uniform(seed: int, index: int, stream: int = 0) -> float:
    digest = hashlib.blake2b(_pack(seed, index, stream), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53
