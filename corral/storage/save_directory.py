"""A directory of saved files with names that clients choose.

All operations are relative to the directory's descriptor, so that it cannot be swapped; one that was removed
is made again. A file is written under a temporary name and renamed, so a name always refers to a complete
file. Write and commit in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from corral.core.atomic_file import AtomicFile, list_directory, remove_leftovers
from corral.core.errors import CorralError, InvalidRequest
from corral.core.file import file_error, write_all

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LOCK = ".lock"  # where a directory cannot be locked, as in NFS
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def check_name(name: object, field: str) -> str:
    if isinstance(name, str) and NAME.fullmatch(name):
        return name
    rule = "must be 1 to 128 letters, digits, '.', '_' or '-', and must not begin with '.'"
    raise InvalidRequest(rule, field=field)


class SavedFile(NamedTuple):
    """Identity of a file; two are equal if it has not changed in between."""

    name: str
    inode: int
    n_bytes: int
    modified_ns: int

    @property
    def updated_at(self) -> int:
        """Unix seconds."""
        return self.modified_ns // 1_000_000_000


def saved_file(name: str, info: os.stat_result) -> SavedFile:
    return SavedFile(name, info.st_ino, info.st_size, info.st_mtime_ns)


class SaveDirectory:
    """Files have the name that the client chose, plus the suffix. Other files in the directory are not
    touched."""

    _close = staticmethod(os.close)  # at interpreter exit `os` may be gone first

    def __init__(
        self,
        path: Path,
        suffix: str = "",
        inside: SaveDirectory | None = None,
        option: str = "--slot-save-path",
    ) -> None:
        """`path` must be a writable directory; a subdirectory of `inside` must not be a link. `option`: its
        name in errors, since clients must not see paths."""
        self._fd = -1
        self._option = option
        self._inside = inside
        self._path: Path = inside._path / path if inside else path
        self._suffix = suffix
        try:
            self._fd = self._open()
            remove_leftovers(self._fd)
            with AtomicFile(self._fd, ""):
                pass
        except OSError as error:
            message = f"{option}: cannot save files in '{self._path}': {error.strerror}"
            raise CorralError(message) from None

    @property
    def fd(self) -> int:
        return self._fd

    def subdirectory(self, name: str, suffix: str = "") -> SaveDirectory:
        """Open a directory in this one, creating it with mode 0700 if it is missing."""
        self._ensure()
        with _explained("make", name), contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=self._fd)
        return SaveDirectory(Path(name), suffix, inside=self, option=self._option)

    def create(self, name: str) -> NamedFile:
        """Create a file that replaces the one with this name when it is committed."""
        self._ensure()
        return NamedFile(self, name, self._file(name))

    def open(self, name: str) -> int:
        """Open a regular file for reading, and return the descriptor."""
        self._ensure()
        with _explained("read", name):
            try:
                fd = os.open(self._file(name), _READ, dir_fd=self._fd)
            except FileNotFoundError:
                raise InvalidRequest(f"file '{name}' does not exist in {self._option}") from None
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENXIO):  # link, socket
                    raise
            else:
                if stat.S_ISREG(os.fstat(fd).st_mode):
                    return fd
                os.close(fd)
        raise InvalidRequest(f"'{name}' in {self._option} is not a regular file")

    def remove(self, name: str) -> None:
        """Remove the file if it exists."""
        self._ensure()
        with _explained("remove", name), contextlib.suppress(FileNotFoundError):
            os.unlink(self._file(name), dir_fd=self._fd)

    def names(self) -> list[SavedFile]:
        """Return the regular files that clients can name, unordered."""
        self._ensure()
        with _explained("list", self._path.name):
            found = [self._describe(file) for file in list_directory(self._fd)]
        return [file for file in found if file is not None]

    def folders(self) -> list[str]:
        """Return the names of the directories in it, unordered."""
        self._ensure()
        with _explained("list", self._path.name):
            return [name for name in list_directory(self._fd) if self._is_folder(name)]

    def find(self, name: str) -> SavedFile | None:
        """Return the regular file of that name, if it exists."""
        self._ensure()
        with _explained("find", name):
            return self._describe(self._file(name))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other threads and processes that lock the directory out of the block."""
        self._ensure()
        with contextlib.ExitStack() as at_end:
            for name, flags in ((".", _DIRECTORY), (_LOCK, _LOCK_FLAGS)):
                fd = os.open(name, flags, 0o600, dir_fd=self._fd)
                at_end.callback(os.close, fd)
                with contextlib.suppress(OSError):  # a file system without locks, or only for other files
                    fcntl.flock(fd, fcntl.LOCK_EX)
                    break
            yield

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._close(fd)

    def __del__(self) -> None:
        self.close()

    def _open(self) -> int:
        if self._inside is None:
            return os.open(self._path, _DIRECTORY)
        return os.open(self._path.name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=self._inside.fd)

    def _ensure(self) -> None:
        """Make the directory again if it was removed. Its descriptor keeps its number: threads may use it."""
        try:
            if os.fstat(self._fd).st_nlink:
                return
            with contextlib.suppress(FileExistsError):
                if self._inside is None:
                    os.makedirs(self._path, 0o700)
                else:
                    self._inside._ensure()
                    os.mkdir(self._path.name, 0o700, dir_fd=self._inside.fd)
            fd = self._open()
            os.dup2(fd, self._fd, inheritable=False)
            os.close(fd)
        except OSError as error:
            raise file_error(
                f"{self._option}: the directory was removed, and cannot be made", error
            ) from None

    def _file(self, name: str) -> str:
        return check_name(name, "name") + self._suffix

    def _is_folder(self, name: str) -> bool:
        try:
            return stat.S_ISDIR(os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            return False

    def _describe(self, file: str) -> SavedFile | None:
        name = file.removesuffix(self._suffix)
        if not NAME.fullmatch(name) or name + self._suffix != file:
            return None
        try:
            info = os.stat(file, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return saved_file(name, info) if stat.S_ISREG(info.st_mode) else None


class NamedFile(AtomicFile):
    """A new file that replaces the file of a name on commit."""

    def __init__(self, directory: SaveDirectory, name: str, file: str) -> None:
        self._client_name = name
        with _explained("write", name):
            super().__init__(directory.fd, file)

    def write(self, pieces: Iterable[bytes]) -> None:
        with _explained("write", self._client_name):
            for piece in pieces:
                write_all(self.fd, piece)

    def commit(self) -> None:
        with _explained("write", self._client_name):
            super().commit()


@contextlib.contextmanager
def _explained(verb: str, name: str) -> Iterator[None]:
    try:
        yield
    except IsADirectoryError:
        raise InvalidRequest(f"'{name}' is a directory") from None
    except OSError as error:
        raise file_error(f"cannot {verb} '{name}'", error) from None
