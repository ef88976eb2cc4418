"""Getting a file: goes on where it was when the connection is lost, and is checked before anybody uses it.

Bytes of two versions of a file are never put together: only what the server says to be of the same version is
added to what is here, unless a checksum can tell in the end. Knows nothing of caches.
"""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from corral.cli.part import Part, Stamp, part_path
from corral.cli.remote_file import (
    Refused,
    RemoteFile,
    Unreachable,
    check_way,
    first_byte,
    open_client,
    read_stamp,
    reason_of,
    refusal,
    retry_after_s,
    shown,
    unreachable,
)
from corral.cli.transfer import Transfer, sized
from corral.core.errors import CorralError, InsufficientStorage, InvalidRequest

MAX_PIECE_BYTES = 40 << 30  # networks that hubs deliver through refuse more in one answer
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_NO_WAY = (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to try; an attempt that gets `n_fruitful_bytes` farther than all before it is no failure."""

    n_tries: int = 10
    first_wait_s: float = 0.5
    longest_wait_s: float = 10.0
    n_fruitful_bytes: int = 1 << 20
    timeout_s: float = 60.0  # without a byte
    sleep: Callable[[float], None] = time.sleep

    def wait_s(self, n_failed: int) -> float:
        return min(self.first_wait_s * 2.0 ** (n_failed - 1), self.longest_wait_s)


PATIENT = RetryPolicy()


def fetch(
    file: RemoteFile,
    path: Path,
    progress: Transfer,
    *,
    check: Callable[[Path], object] = lambda _: None,
    retry: RetryPolicy = PATIENT,
) -> Stamp:
    """Put the file at `path`, all of it or nothing; the next call goes on where one that failed was.

    `check` raises InvalidRequest if a file, of which no checksum is known, cannot be the right one.
    """
    try:
        part = Part(part_path(path))
    except OSError as error:
        raise CorralError(f"{file.option}: cannot write {path}: {error.strerror}") from None
    with closing(part):
        try:
            with open_client(file, retry.timeout_s) as client:
                _Fetch(file, part, progress, check, retry, client).run()
            part.land(path)
        except KeyboardInterrupt:
            progress.end()
            progress.note(f"interrupted; {_kept(part)}")
            raise
        except OSError as error:
            raise _unwritten(file, part, error) from None
        finally:
            progress.end()
    return part.stamp


class _Lost(Exception):
    """The file did not come, or not all of it; it may next time."""

    def __init__(self, reason: str, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class _Fetch:
    """Mutable: one download, over as many requests as it takes."""

    def __init__(
        self,
        file: RemoteFile,
        part: Part,
        progress: Transfer,
        check: Callable[[Path], object],
        retry: RetryPolicy,
        client: httpx.Client,
    ) -> None:
        self._file, self._part, self._progress = file, part, progress
        self._check, self._patience, self._client = check, retry, client
        self._has_heard = False  # anything from the server
        self._has_joined = part.n_bytes > 0  # bytes of several answers

    def run(self) -> None:
        file = self._file
        self._get_all()
        fault = self._fault()
        if fault and self._has_joined:
            self._progress.note(f"{file.name}: its pieces do not fit together ({fault}), getting it anew")
            self._part.restart(Stamp())
            self._get_all()
            fault = self._fault()
        if fault:
            self._part.restart(Stamp())
            raise CorralError(f"{file.option}: what {file.host} sends as {file.name} is not right: {fault}")

    def _get_all(self) -> None:
        """Ask until everything is here."""
        n_failed, n_best = 0, self._part.n_bytes
        while not self._is_complete:
            try:
                self._attempt()
                if self._is_complete or self._part.n_bytes > n_best:
                    n_best = self._part.n_bytes
                    continue
                lost = _Lost("it sent nothing of use")
            except (httpx.HTTPError, _Lost) as error:
                lost = self._loss(error)
            is_fruitful = self._part.n_bytes >= n_best + self._patience.n_fruitful_bytes
            n_failed = 1 if is_fruitful else n_failed + 1
            n_best = max(n_best, self._part.n_bytes)
            self._wait(lost, n_failed)

    def _wait(self, lost: _Lost, n_failed: int) -> None:
        file, part = self._file, self._part
        if n_failed >= self._patience.n_tries:
            raise Unreachable(
                f"{file.option}: getting {file.name} from {file.host} has failed {n_failed} times in a "
                f"row ({lost}); {_kept(part)}"
            )
        wait_s = max(self._patience.wait_s(n_failed), lost.wait_s)
        share = f" at {part.n_bytes / part.stamp.n_bytes:.0%}" if part.stamp.n_bytes and part.n_bytes else ""
        self._progress.note(f"{file.name}: interrupted{share} ({lost}), going on in {wait_s:g} s")
        self._patience.sleep(wait_s)

    def _loss(self, error: Exception) -> _Lost:
        """What went wrong on the way, if trying again can help; raises what stays so."""
        file = self._file
        if isinstance(error, _Lost):
            return error
        if isinstance(error, httpx.UnsupportedProtocol | httpx.TooManyRedirects):
            raise Refused(f"{file.option}: {file.host} leads nowhere: {error}") from None
        if not self._has_heard and isinstance(error, _NO_WAY):
            raise unreachable(file, error) from None
        return _Lost(reason_of(error))

    @property
    def _is_complete(self) -> bool:
        part, file = self._part, self._file
        if not part.n_bytes or part.n_bytes != part.stamp.n_bytes:
            return False
        # What another process has left may be of another version, unless a checksum will tell.
        return self._has_heard or bool(file.sha256 and part.n_bytes == file.n_bytes)

    def _attempt(self) -> None:
        headers = self._plan_range()
        with self._client.stream("GET", self._file.url, headers=headers) as response:
            self._has_heard = True
            self._refuse(response)
            if self._accept(response):
                self._check_room()
                self._receive(response)

    def _plan_range(self) -> dict[str, str]:
        """Headers that ask for the rest; what cannot be continued safely is dropped."""
        part, file = self._part, self._file
        sha256 = file.sha256 or part.stamp.sha256
        is_known = part.stamp.url == shown(file.url) and bool(sha256 or part.stamp.validator)
        if not file.sha256 and not is_known:
            part.cut(0)
        if part.n_bytes and part.n_bytes == part.stamp.n_bytes:
            part.cut(part.n_bytes - 1)  # the server has to say that it still has the same
        is_huge = bool(file.sha256) and (file.n_bytes or 0) > MAX_PIECE_BYTES
        if not part.n_bytes and not is_huge:
            return {}
        end = part.n_bytes + MAX_PIECE_BYTES - 1 if is_huge else ""
        headers = {"range": f"bytes={part.n_bytes}-{end}"}
        return headers if sha256 else {**headers, "if-range": part.stamp.validator}

    def _refuse(self, response: httpx.Response) -> None:
        """Raises unless the answer is the file, a piece of it, or says that there is no such piece."""
        file, status = self._file, response.status_code
        check_way(file, response)
        if status in _PASSING:
            raise _Lost(f"{file.host} answers {status}", retry_after_s(response))
        if status == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE and self._part.n_bytes:
            return
        if status not in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
            raise refusal(file, response)
        what = f"{file.option}: {file.host} sends {file.name}"
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise Refused(f"{what} compressed, though asked not to")
        if response.headers.get("content-type", "").startswith("text/html"):
            raise Refused(f"{what} as a page for browsers: is this the address of the file itself?")
        n_bytes = read_stamp(file, response).n_bytes
        if None not in (file.n_bytes, n_bytes) and n_bytes != file.n_bytes:
            raise Refused(f"{what} with {n_bytes} bytes, but lists it with {file.n_bytes}")

    def _accept(self, response: httpx.Response) -> bool:
        """Whether the body goes behind what is here; what is here may have to go for that."""
        part, stamp = self._part, read_stamp(self._file, response)
        if response.status_code == httpx.codes.OK:
            if part.n_bytes and not stamp.is_same(part.stamp):
                self._progress.note(f"{self._file.name} has changed on the server, getting it from the start")
            part.restart(stamp)
        elif not self._continues(response, stamp):
            part.restart(Stamp())
            return False
        elif not part.n_bytes:
            part.restart(stamp)
        else:
            self._has_joined = True
            part.stamp = msgspec.structs.replace(part.stamp, n_bytes=stamp.n_bytes)
        return True

    def _continues(self, response: httpx.Response, stamp: Stamp) -> bool:
        part = self._part
        if response.status_code != httpx.codes.PARTIAL_CONTENT or first_byte(response) != part.n_bytes:
            return False
        if stamp.n_bytes is None or part.stamp.n_bytes not in (None, stamp.n_bytes):
            return False
        return bool(self._file.sha256) or stamp.is_same(part.stamp)

    def _receive(self, response: httpx.Response) -> None:
        part, progress = self._part, self._progress
        progress.begin(f"downloading {self._file.name}", part.stamp.n_bytes, part.n_bytes)
        for piece in response.iter_raw():
            part.append(piece)
            progress.advance(part.n_bytes)
        if part.stamp.n_bytes is None:  # the file ends where the answer does
            part.stamp = msgspec.structs.replace(part.stamp, n_bytes=part.n_bytes)

    def _check_room(self) -> None:
        part = self._part
        n_needed = (part.stamp.n_bytes or 0) - part.n_bytes
        n_free = shutil.disk_usage(part.path.parent).free
        if n_needed > n_free:
            raise InsufficientStorage(
                f"{self._file.option}: {self._file.name} needs {sized(n_needed)}, but only "
                f"{sized(n_free)} are free in {part.path.parent}; LLAMA_CACHE can name another directory"
            )

    def _fault(self) -> str:
        """What is wrong with what has come."""
        part, progress = self._part, self._progress
        expected = self._file.sha256 or part.stamp.sha256
        if expected:
            if part.n_unread:
                progress.begin(f"checking {self._file.name}", part.n_bytes, 0)
            found = part.sha256(progress.advance)
            return "" if found == expected else f"its checksum is {found[:16]}..., not {expected[:16]}..."
        try:
            self._check(part.path)
        except InvalidRequest as error:
            return error.message
        return ""


def _kept(part: Part) -> str:
    """What is left of a download that did not come to its end."""
    if not part.n_bytes:
        return "nothing of it is here yet"
    of = f" of {sized(part.stamp.n_bytes)}" if part.stamp.n_bytes is not None else ""
    return f"{sized(part.n_bytes)}{of} are kept, the same command goes on from there"


def _unwritten(file: RemoteFile, part: Part, error: OSError) -> CorralError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        n_bytes = part.stamp.n_bytes
        needed = f": {sized(n_bytes - part.n_bytes)} more are needed" if n_bytes is not None else ""
        return InsufficientStorage(
            f"{file.option}: the disk of {part.path.parent} is full{needed}; {_kept(part)}"
        )
    return CorralError(f"{file.option}: cannot write {part.path}: {error.strerror}")
