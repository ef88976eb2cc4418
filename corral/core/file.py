"""Complete reads and writes on descriptors, which the system may return early from, and their errors."""

from __future__ import annotations

import errno
import os
import tempfile

from corral.core.errors import CorralError, InsufficientStorage

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def open_memory(what: str) -> int:
    """Open an empty file, in memory if the system supports that; returns its descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(f"corral-{what}", os.MFD_CLOEXEC)
    fd, path = tempfile.mkstemp(prefix=f"corral-{what}-")
    os.unlink(path)
    return fd


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write everything at the file's offset."""
    left = memoryview(data)
    while len(left):
        left = left[os.write(fd, left) :]


def read_into(fd: int, offset: int, view: memoryview) -> int:
    """Fill `view` from an offset, and return the bytes read; fewer at the end of the file. The file's own
    offset stays."""
    n_read = 0
    while n_read < len(view):
        n = os.preadv(fd, [view[n_read:]], offset + n_read)
        if not n:
            break
        n_read += n
    return n_read


def file_error(what: str, error: OSError) -> CorralError:
    """Return an error with the system's reason, but without the path, which clients must not see."""
    kind = InsufficientStorage if error.errno in _FULL else CorralError
    return kind(f"{what}: {error.strerror}")
