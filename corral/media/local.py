"""Images and audio that clients name by `file:` URLs, inside the directory of --media-path.

A path is opened part by part, and no part may be a link: nothing outside is reachable, even if the
directory changes meanwhile. Errors reveal nothing about files outside. Read in a thread.
"""

from __future__ import annotations

import errno
import os
import stat
from urllib.parse import unquote_to_bytes

from corral.core.errors import CorralError
from corral.core.file import file_error
from corral.media.decoded import MAX_BYTES, BadMedia, too_large

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY

_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
_IRREGULAR = (errno.ELOOP, errno.ENXIO)  # link, socket
_FORBIDDEN = (errno.EACCES, errno.EPERM)


class LocalMedia:
    """`file:name`, `file://name` and `file:///name` are relative to the directory; the last one may also be
    the whole path of a file inside it."""

    def __init__(self, directory: str) -> None:
        self._directory = os.path.realpath(directory)
        self._roots = [_split(os.fsencode(path)) for path in (os.path.abspath(directory), self._directory)]
        try:
            os.close(os.open(self._directory, _DIRECTORY))
        except OSError as error:
            raise CorralError(f"cannot read media from '{directory}': {error.strerror}") from None

    def read(self, url: str) -> bytes:
        """Read the whole file that a `file:` URL names."""
        parts = self._inside(_decode(url))
        try:
            fd = self._open(parts)
            try:
                return _read(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise _explain(error) from None

    def _inside(self, path: bytes) -> list[bytes]:
        """Return the path from the directory to the file, in parts."""
        parts = _split(path)
        if b".." in parts or b"\0" in path:
            raise _no_such_file()
        roots = self._roots if path.startswith(b"/") else []
        root = next((root for root in roots if parts[: len(root)] == root), [])
        return parts[len(root) :]

    def _open(self, parts: list[bytes]) -> int:
        fd = os.open(self._directory, _DIRECTORY)
        for n_left, part in zip(range(len(parts), 0, -1), parts, strict=True):
            outer = fd
            try:
                fd = os.open(part, _FILE if n_left == 1 else _DIRECTORY | os.O_NOFOLLOW, dir_fd=outer)
            finally:
                os.close(outer)
        return fd


def _decode(url: str) -> bytes:
    """Return the path in a `file:` URL."""
    # compat: /v1/chat/completions: everything after `file://` is path: no host, no query, no fragment
    path = url[len("file:") :].removeprefix("//")
    try:
        return unquote_to_bytes(path)
    except UnicodeEncodeError:  # lone surrogate
        raise _no_such_file() from None


def _split(path: bytes) -> list[bytes]:
    return [part for part in path.split(b"/") if part not in (b"", b".")]


def _read(fd: int) -> bytes:
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        raise _not_regular()
    if info.st_size > MAX_BYTES:
        raise too_large()
    with open(fd, "rb", closefd=False) as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:  # it is growing, or has no size
        raise too_large()
    return data


def _explain(error: OSError) -> CorralError:
    if error.errno in _MISSING:
        return _no_such_file()
    if error.errno in _IRREGULAR:
        return _not_regular()
    if error.errno in _FORBIDDEN:
        return BadMedia("the server has no permission to read that file")
    return file_error("cannot read a file under --media-path", error)


def _no_such_file() -> BadMedia:
    return BadMedia("file not found under --media-path")


def _not_regular() -> BadMedia:
    return BadMedia("that is not a regular file")
