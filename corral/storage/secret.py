"""The secret of a directory: signs the states in it, and those that its servers give to clients.

It is a file beside the states that no client can name. Servers that share the directory share the secret, and
it survives a restart. Blocks.
"""

from __future__ import annotations

import contextlib
import os
import secrets

from corral.core.atomic_file import AtomicFile
from corral.core.errors import CorralError
from corral.core.file import file_error, write_all
from corral.storage.save_directory import SaveDirectory

SECRET_BYTES = 32
_FILE = ".secret"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def read_secret(directory: SaveDirectory) -> bytes:
    """Return the secret; the first server that uses the directory makes it."""
    try:
        with contextlib.suppress(FileNotFoundError):
            return _read(directory)
        with directory.locked():
            with contextlib.suppress(FileNotFoundError):
                return _read(directory)
            with AtomicFile(directory.fd, _FILE) as file:
                write_all(file.fd, secrets.token_bytes(SECRET_BYTES))
                file.commit()
            return _read(directory)
    except OSError as error:
        raise file_error("the secret of --slot-save-path cannot be read", error) from None


def _read(directory: SaveDirectory) -> bytes:
    with os.fdopen(os.open(_FILE, _READ, dir_fd=directory.fd), "rb") as file:
        secret = file.read(SECRET_BYTES + 1)
    if len(secret) != SECRET_BYTES:
        raise CorralError(f"--slot-save-path: its file '{_FILE}' is damaged; remove it")
    return secret
