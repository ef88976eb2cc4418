"""Files from URLs, in the cache of the user: got once, whole or not at all, and again when they have changed.

Beside each file lies a receipt, which says where it is from and of which version it is. Locks keep processes
from getting the same file at the same time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit, urlunsplit

import httpx
from filelock import FileLock, Timeout

from corral.cli.fetch import PATIENT, RetryPolicy, fetch
from corral.cli.part import Stamp, read_stamp_file, stamp_path, write_stamp_file
from corral.cli.remote_file import Refused, RemoteFile, Unreachable, inspect
from corral.cli.transfer import Transfer
from corral.core.cache_dir import cache_dir
from corral.core.errors import CorralError
from corral.gguf.model_file import part_names
from corral.gguf.preflight import read_header

_MAX_NAME_BYTES = 180
_LOCKS = ".locks"
_NOT_ASKABLE = (405, 501)


@dataclass(frozen=True, slots=True)
class Access:
    """How to get at files; a token goes to the host of the URL and to no other, `offline` asks nobody."""

    token: str = ""
    offline: bool = False
    retry: RetryPolicy = PATIENT


OPEN = Access()
Check: TypeAlias = Callable[[Path], object]


class Receipt(Stamp, frozen=True):
    """What is known of a file in the cache, as it was at `mtime_ns`."""

    time: float = 0.0
    mtime_ns: int = 0


def download(
    url: str,
    option: str,
    progress: Transfer,
    *,
    to: Path | None = None,
    access: Access = OPEN,
    check: Check = read_header,
) -> Path:
    """The file that a URL names, as new as can be found out; of a model in parts the first, but all are got.

    `to` is where it is put, if not into the cache; what is there is taken as it is. Parts lie beside it under
    names of their own. `check` raises InvalidRequest for what is no such file.
    """
    urls = _part_urls(url, option)
    for each in urls:
        file, path = RemoteFile(each, option, _name(each), access.token), _place(each, urls, to)
        with alone(path, file, progress):
            if to is not None:
                _get_once(file, path, progress, access, check)
            else:
                _get_current(file, path, progress, access, check)
    return _place(urls[0], urls, to)


@contextlib.contextmanager
def alone(path: Path, file: RemoteFile, progress: Transfer) -> Iterator[None]:
    """Nobody else gets the file meanwhile; waits for who does."""
    try:
        lock = lock_of(path)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress.note(f"another process is getting {file.name}, waiting for it")
            lock.acquire()
    except OSError as error:
        raise CorralError(
            f"{file.option}: cannot write into {cache_dir()}: {error.strerror}; LLAMA_CACHE can name another"
        ) from None
    try:
        yield
    finally:
        lock.release()


def lock_of(path: Path) -> FileLock:
    """Whoever changes the file has to hold it."""
    directory = cache_dir() / _LOCKS
    directory.mkdir(parents=True, exist_ok=True)
    return FileLock(directory / f"{_hash(os.path.realpath(path))}.lock")


def read_receipt(path: Path) -> Receipt | None:
    """What is known of a file, unless it is another one by now."""
    receipt = read_stamp_file(stamp_path(path), Receipt)
    return receipt if receipt is not None and receipt.mtime_ns == path.stat().st_mtime_ns else None


def _get_once(file: RemoteFile, path: Path, progress: Transfer, access: Access, check: Check) -> None:
    if path.exists():
        return
    refuse_offline(file, access)
    fetch(file, path, progress, check=check, retry=access.retry)


def _get_current(file: RemoteFile, path: Path, progress: Transfer, access: Access, check: Check) -> None:
    if path.exists():
        if access.offline or _is_current(file, path, progress):
            return
        progress.note(f"{file.name} has changed on {file.host}, getting the new one")
    refuse_offline(file, access)
    stamp = fetch(file, path, progress, check=check, retry=access.retry)
    _write_receipt(path, stamp)


def _is_current(file: RemoteFile, path: Path, progress: Transfer) -> bool:
    """Whether the file in the cache can be used: it is what the server has, or nobody says otherwise."""
    try:
        theirs = inspect(file)
    except Unreachable:
        progress.note(f"cannot reach {file.host}: using {file.name} as it was {_when(path)}")
        return True
    except Refused as error:
        status = error.details.get("status", "with no file")
        if status not in _NOT_ASKABLE:
            progress.note(f"{file.host} answers {status}: using {file.name} as it was {_when(path)}")
        return True
    receipt = read_receipt(path)
    if receipt is None or not receipt.is_telling or not theirs.is_telling:
        return theirs.n_bytes in (None, path.stat().st_size)
    return receipt.is_same(theirs)


def _write_receipt(path: Path, stamp: Stamp) -> None:
    with contextlib.suppress(OSError):  # without it the sizes are compared
        receipt = Receipt(
            etag=stamp.etag,
            last_modified=stamp.last_modified,
            n_bytes=stamp.n_bytes,
            sha256=stamp.sha256,
            url=stamp.url,
            time=time.time(),
            mtime_ns=path.stat().st_mtime_ns,
        )
        write_stamp_file(stamp_path(path), receipt)


def refuse_offline(file: RemoteFile, access: Access) -> None:
    if access.offline:
        raise CorralError(f"{file.option}: {file.name} is not in the cache, and --offline forbids to get it")


def _part_urls(url: str, option: str) -> list[str]:
    try:
        parts, host = urlsplit(url), httpx.URL(url).host
        is_right = parts.scheme in ("http", "https") and bool(host) and parts.port != 0
    except (ValueError, httpx.InvalidURL):
        is_right = False
    if not is_right:
        raise CorralError(f"{option}: '{url}' is not an http or https URL")
    return [urlunsplit(parts._replace(path=path)) for path in part_names(parts.path)]


def _place(url: str, urls: Sequence[str], to: Path | None) -> Path:
    """Names of parts differ in their numbers only: by these libllama finds them."""
    if to is None:
        return cache_dir() / f"{_hash(urls[0])}-{_name(url)}"
    return to if len(urls) == 1 else to.with_name(_name(url))


def _name(url: str) -> str:
    name = os.path.basename(unquote(urlsplit(url).path)).replace("\0", "").lstrip(".") or "file"
    return name.encode()[-_MAX_NAME_BYTES:].decode(errors="ignore")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _when(path: Path) -> str:
    return time.strftime("on %Y-%m-%d", time.localtime(path.stat().st_mtime))
