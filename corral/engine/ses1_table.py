"""The table of checkpoints in a SES1 file: after their states, before the adapters in the seal.

    ... | state of checkpoint 0 | 1 | ... | k x (n: u32, n_bytes: u64) | k: u32 | adapters | tenant | ...

Each checkpoint is a partial state after the first `n` tokens (`checkpoint.py`). Pure functions of bytes.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable
from typing import NamedTuple

from corral.core.errors import InvalidRequest

MAX_CHECKPOINTS = 1024
_row = struct.Struct("<IQ")
_count = struct.Struct("<I")
MAX_TABLE_BYTES = MAX_CHECKPOINTS * _row.size + _count.size


class Row(NamedTuple):
    """A partial state of `n_bytes` after the first `n` tokens."""

    n: int
    n_bytes: int


def pack_table(rows: Iterable[Row]) -> bytes:
    packed = [_row.pack(*row) for row in rows]
    return b"".join(packed) + _count.pack(len(packed))


def parse_table(data: bytes, n_tokens: int) -> tuple[Row, ...]:
    """Parse the table at the end of `data`; InvalidRequest if it is not one of a sequence of `n_tokens`."""
    if len(data) < _count.size:
        raise InvalidRequest("the state is truncated")
    (k,) = _count.unpack(data[-_count.size :])
    start = len(data) - table_bytes(k)
    if k > MAX_CHECKPOINTS or start < 0:
        raise InvalidRequest(f"the state has a table of {k} checkpoints that cannot be read")
    rows = tuple(Row(*values) for values in _row.iter_unpack(data[start : -_count.size]))
    places = [0, *(row.n for row in rows), n_tokens + 1]
    if any(a >= b for a, b in itertools.pairwise(places)):
        raise InvalidRequest("the checkpoints of the state are not in ascending order among its tokens")
    return rows


def table_bytes(k: int) -> int:
    """Return the size of a table of `k` checkpoints."""
    return k * _row.size + _count.size
