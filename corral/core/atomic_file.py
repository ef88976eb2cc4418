"""Files that replace their target whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that replaces `path` when the block ends; after an error `path` has what it had."""
    pending = path.with_name(f".pending-{os.getpid()}-{secrets.token_hex(8)}")
    try:
        with open(pending, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(pending, path)
    except BaseException:
        pending.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
