"""Download one file over HTTP, resume it after a lost connection or a killed process, and verify it.

Bytes of two versions are never joined: unless a checksum is known, the server must confirm that the rest
belongs to the same version. Knows nothing about caches.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import httpx
import msgspec

from corral.core.atomic_file import atomic_write, open_directory
from corral.core.errors import CorralError, InsufficientStorage, InvalidRequest
from corral.core.file import write_all
from corral.models.files.remote_file import Refused, RemoteFile, Unreachable, Version, first_byte, reason_of
from corral.models.files.transfer import Transfer, sized

PART = ".part"
MAX_PIECE_BYTES = 40 << 30  # content delivery networks refuse larger responses
_MAX_RETRY_AFTER_S = 60.0
_BLOCK = 1 << 20
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
_NO_CONNECTION = (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often to retry. An attempt that gets `n_fruitful_bytes` beyond all previous ones is not counted as
    a failure."""

    n_tries: int = 10
    first_wait_s: float = 0.5
    longest_wait_s: float = 10.0
    n_fruitful_bytes: int = 1 << 20
    timeout_s: float = 60.0  # without receiving a byte
    sleep: Callable[[float], None] = time.sleep

    def wait_s(self, n_failed: int) -> float:
        return min(self.first_wait_s * 2.0 ** (n_failed - 1), self.longest_wait_s)


PATIENT = RetryPolicy()
Check: TypeAlias = Callable[[Path], object]


def fetch(
    file: RemoteFile,
    path: Path,
    progress: Transfer,
    *,
    check: Check = lambda _: None,
    retry: RetryPolicy = PATIENT,
) -> Version:
    """Download the file to `path`, atomically; the next call resumes a failed download.

    `check` raises InvalidRequest if a file without a known checksum cannot be the right one.
    """
    try:
        part = PartFile(path)
    except OSError as error:
        raise CorralError(f"{file.option}: cannot write {path}: {error.strerror}") from None
    try:
        _Fetch(file, part, progress, check, retry).run()
        part.commit()
    except KeyboardInterrupt:
        progress.end()
        progress.note(f"interrupted; {_kept(part)}")
        raise
    except OSError as error:
        raise _write_error(file, part, error) from None
    finally:
        part.close()
        progress.end()
    return part.version


class PartFile:
    """The bytes downloaded so far in `NAME.part`, and their version in `NAME.part.json`. One process at a
    time."""

    def __init__(self, target: Path) -> None:
        self._target, self.path = target, part_path(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        self.version = read_version_file(self.path) or Version()
        self._measure()

    def restart(self, version: Version) -> None:
        """Discard the bytes and begin with this version."""
        self.truncate(0)
        self.version = version
        write_version_file(self.path, version)

    def truncate(self, n_bytes: int) -> None:
        os.ftruncate(self._fd, n_bytes)
        self._measure()

    def append(self, data: bytes) -> None:
        try:
            write_all(self._fd, data)
        except OSError:
            self._measure()
            raise
        if self._n_hashed == self.n_bytes:
            self._hash.update(data)
            self._n_hashed += len(data)
        self.n_bytes += len(data)

    def sha256(self, on_progress: Callable[[int], None]) -> str:
        """Hash all bytes. Those that an earlier process downloaded are read from the file."""
        while block := os.pread(self._fd, _BLOCK, self._n_hashed):
            self._hash.update(block)
            self._n_hashed += len(block)
            on_progress(self._n_hashed)
        return self._hash.hexdigest()

    @property
    def n_unhashed(self) -> int:
        return self.n_bytes - self._n_hashed

    def commit(self) -> None:
        """Rename the file to its final name after an fsync."""
        os.fsync(self._fd)
        os.replace(self.path, self._target)
        version_path(self.path).unlink(missing_ok=True)
        with open_directory(self._target.parent) as directory:
            os.fsync(directory)

    def close(self) -> None:
        """Close the file. Its bytes stay for the next process; an empty file is removed."""
        os.close(self._fd)
        if not self.n_bytes:
            self.path.unlink(missing_ok=True)
            version_path(self.path).unlink(missing_ok=True)

    def _measure(self) -> None:
        self.n_bytes = os.lseek(self._fd, 0, os.SEEK_END)
        self._hash, self._n_hashed = hashlib.sha256(), 0


def part_path(path: Path) -> Path:
    """Return the path of a file while it is incomplete."""
    return path.with_name(f"{path.name}{PART}")


def version_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def read_version_file(path: Path) -> Version | None:
    """Read the recorded version of a file; None if the record is missing or invalid."""
    try:
        return msgspec.json.decode(version_path(path).read_bytes(), type=Version)
    except (OSError, msgspec.DecodeError):
        return None


def write_version_file(path: Path, version: Version) -> None:
    with atomic_write(version_path(path)) as file:
        file.write(msgspec.json.encode(version))


class _ConnectionLost(Exception):
    """The file did not arrive completely; a retry may help."""

    def __init__(self, reason: str, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class _Fetch:
    """One download, in as many requests as it needs."""

    def __init__(
        self, file: RemoteFile, part: PartFile, progress: Transfer, check: Check, retry: RetryPolicy
    ) -> None:
        self._file, self._part, self._progress = file, part, progress
        self._check, self._retry = check, retry
        self._has_answered = False
        self._is_joined = part.n_bytes > 0  # from several responses

    def run(self) -> None:
        file = self._file
        for is_last in (False, True):
            self._get_all()
            fault = self._find_fault()
            if not fault:
                return
            self._part.restart(Version())
            if is_last or not self._is_joined:
                raise CorralError(f"{file.option}: {file.host} sent a wrong {file.name}: {fault}")
            self._progress.note(
                f"{file.name}: the downloaded parts do not match ({fault}), downloading it again"
            )

    def _get_all(self) -> None:
        part, n_failed, n_best = self._part, 0, self._part.n_bytes
        while not self._is_complete:
            try:
                self._attempt()
                if not self._is_complete and part.n_bytes <= n_best:
                    raise _ConnectionLost("the server sent no usable data")
            except (httpx.HTTPError, _ConnectionLost) as error:
                lost = self._classify(error)
                n_failed = 1 if part.n_bytes >= n_best + self._retry.n_fruitful_bytes else n_failed + 1
                self._wait(lost, n_failed)
            n_best = max(n_best, part.n_bytes)

    def _wait(self, lost: _ConnectionLost, n_failed: int) -> None:
        file, part = self._file, self._part
        if n_failed >= self._retry.n_tries:
            raise Unreachable(
                f"{file.option}: downloading {file.name} from {file.host} failed {n_failed} times in a "
                f"row ({lost}); {_kept(part)}"
            )
        wait_s = max(self._retry.wait_s(n_failed), lost.wait_s)
        n_all = part.version.n_bytes
        share = f" at {part.n_bytes / n_all:.0%}" if n_all and part.n_bytes else ""
        self._progress.note(f"{file.name}: interrupted{share} ({lost}), retrying in {wait_s:g} s")
        self._retry.sleep(wait_s)

    def _classify(self, error: Exception) -> _ConnectionLost:
        """Return the error to retry after. Raises if a retry cannot help."""
        file = self._file
        if isinstance(error, httpx.UnsupportedProtocol | httpx.TooManyRedirects):
            raise Refused(f"{file.option}: {file.host} sent an invalid redirect: {error}") from None
        if not self._has_answered and isinstance(error, _NO_CONNECTION):
            raise file.unreachable(error) from None
        return error if isinstance(error, _ConnectionLost) else _ConnectionLost(reason_of(error))

    @property
    def _is_complete(self) -> bool:
        part, file = self._part, self._file
        if not part.n_bytes or part.n_bytes != part.version.n_bytes:
            return False
        # Only a checksum can show that bytes from another process are not of an old version.
        return self._has_answered or bool(file.sha256 and part.n_bytes == file.n_bytes)

    def _attempt(self) -> None:
        headers = self._plan_range()
        with (
            self._file.open_client(self._retry.timeout_s) as client,
            client.stream("GET", self._file.url, headers=headers) as response,
        ):
            self._has_answered = True
            self._check_answer(response)
            if self._accept(response):
                self._check_disk()
                self._receive(response)

    def _plan_range(self) -> dict[str, str]:
        """Return headers that request the rest of the file. Discards bytes that cannot be resumed safely."""
        part, file = self._part, self._file
        sha256 = file.sha256 or part.version.sha256
        is_known = part.version.url == file.public_url and bool(sha256 or part.version.validator)
        if not file.sha256 and not is_known:
            part.truncate(0)
        if part.n_bytes and part.n_bytes == part.version.n_bytes:
            part.truncate(part.n_bytes - 1)  # so that the server must confirm the version
        is_huge = bool(file.sha256) and (file.n_bytes or 0) > MAX_PIECE_BYTES
        if not part.n_bytes and not is_huge:
            return {}
        end = part.n_bytes + MAX_PIECE_BYTES - 1 if is_huge else ""
        headers = {"range": f"bytes={part.n_bytes}-{end}"}
        return headers if sha256 else {**headers, "if-range": part.version.validator}

    def _check_answer(self, response: httpx.Response) -> None:
        """Raise unless the response is the file, a range of it, or a 416 to a resumed download."""
        file, status = self._file, response.status_code
        file.check_redirects(response)
        if status in _TRANSIENT:
            after = response.headers.get("retry-after", "")
            wait_s = min(float(after), _MAX_RETRY_AFTER_S) if after.isdecimal() else 0.0
            raise _ConnectionLost(f"{file.host} returned {status}", wait_s)
        if status == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE and self._part.n_bytes:
            return
        if status not in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
            raise file.refusal(response)
        what = f"{file.option}: {file.host} sends {file.name}"
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise Refused(f"{what} compressed, although uncompressed data was requested")
        if response.headers.get("content-type", "").startswith("text/html"):
            raise Refused(f"{what} as an HTML page: the URL must point to the file itself")
        n_bytes = file.read_version(response).n_bytes
        if None not in (file.n_bytes, n_bytes) and n_bytes != file.n_bytes:
            raise Refused(f"{what} with {n_bytes} bytes, but lists it with {file.n_bytes}")

    def _accept(self, response: httpx.Response) -> bool:
        """Whether the body continues the part. Discards the part if it does not."""
        part, file, version = self._part, self._file, self._file.read_version(response)
        if response.status_code == httpx.codes.OK:
            if part.n_bytes and not version.is_same(part.version):
                self._progress.note(f"{file.name} has changed on the server, downloading it from the start")
            part.restart(version)
            return True
        is_sized = version.n_bytes is not None and part.version.n_bytes in (None, version.n_bytes)
        is_piece = response.status_code == httpx.codes.PARTIAL_CONTENT and is_sized
        is_same = bool(file.sha256) or version.is_same(part.version)
        is_next = is_piece and is_same and first_byte(response) == part.n_bytes
        if not is_next or not part.n_bytes:
            part.restart(version if is_next else Version())
        else:
            self._is_joined = True
            part.version = msgspec.structs.replace(part.version, n_bytes=version.n_bytes)
        return is_next

    def _receive(self, response: httpx.Response) -> None:
        part, progress = self._part, self._progress
        progress.begin(f"downloading {self._file.name}", part.version.n_bytes, part.n_bytes)
        for piece in response.iter_raw():
            part.append(piece)
            progress.advance(part.n_bytes)
        if part.version.n_bytes is None:  # the file ends where the response ends
            part.version = msgspec.structs.replace(part.version, n_bytes=part.n_bytes)

    def _check_disk(self) -> None:
        part = self._part
        n_needed = (part.version.n_bytes or 0) - part.n_bytes
        n_free = shutil.disk_usage(part.path.parent).free
        if n_needed > n_free:
            raise InsufficientStorage(
                f"{self._file.option}: {self._file.name} needs {sized(n_needed)}, but only "
                f"{sized(n_free)} are free in {part.path.parent}; set LLAMA_CACHE to another directory"
            )

    def _find_fault(self) -> str:
        part, progress = self._part, self._progress
        expected = self._file.sha256 or part.version.sha256
        if expected:
            if part.n_unhashed:
                progress.begin(f"checking {self._file.name}", part.n_bytes, 0)
            found = part.sha256(progress.advance)
            return "" if found == expected else f"its checksum is {found[:16]}..., not {expected[:16]}..."
        try:
            self._check(part.path)
        except InvalidRequest as error:
            return error.message
        return ""


def _kept(part: PartFile) -> str:
    """Describe what the next attempt starts with."""
    if not part.n_bytes:
        return "nothing was downloaded yet"
    of = f" of {sized(part.version.n_bytes)}" if part.version.n_bytes is not None else ""
    return f"{sized(part.n_bytes)}{of} are kept, run the same command to resume"


def _write_error(file: RemoteFile, part: PartFile, error: OSError) -> CorralError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        n_bytes = part.version.n_bytes
        needed = f": {sized(n_bytes - part.n_bytes)} more are needed" if n_bytes is not None else ""
        return InsufficientStorage(
            f"{file.option}: the disk of {part.path.parent} is full{needed}; {_kept(part)}"
        )
    return CorralError(f"{file.option}: cannot write {part.path}: {error.strerror}")
