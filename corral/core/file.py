"""Whole reads and writes on descriptors, which the system may cut short, and what it says when they fail."""

from __future__ import annotations

import errno
import os

from corral.core.errors import CorralError, InsufficientStorage

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write at the file's offset."""
    left = memoryview(data)
    while len(left):
        left = left[os.write(fd, left) :]


def read_into(fd: int, offset: int, view: memoryview) -> int:
    """Fill `view` from a place in the file; returns how many bytes there were. The offset stays."""
    n_read = 0
    while n_read < len(view):
        n = os.preadv(fd, [view[n_read:]], offset + n_read)
        if not n:
            break
        n_read += n
    return n_read


def file_error(what: str, error: OSError) -> CorralError:
    """`what` went wrong, with the system's reason, but without the path, which is nobody's business."""
    kind = InsufficientStorage if error.errno in _FULL else CorralError
    return kind(f"{what}: {error.strerror}")
