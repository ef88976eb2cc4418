"""Files from URLs in the user's cache: downloaded once, and again when they have changed.

Next to each file is a record of its version and origin. Locks keep processes from downloading one file twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

import httpx
import msgspec
from filelock import FileLock, Timeout

from corral.cli.fetch import PATIENT, RetryPolicy, fetch, read_version_file, write_version_file
from corral.cli.remote_file import Refused, RemoteFile, Unreachable, Version, inspect
from corral.cli.transfer import Transfer
from corral.core.cache_dir import cache_dir
from corral.core.errors import CorralError
from corral.gguf.model_file import part_names
from corral.gguf.preflight import read_header

_MAX_NAME_BYTES = 180
_NO_HEAD = (405, 501)


@dataclass(frozen=True, slots=True)
class Access:
    """How to get at files; the token goes to the host of the URL only, `offline` asks no server."""

    token: str = ""
    offline: bool = False
    retry: RetryPolicy = PATIENT


OPEN = Access()


def download(
    url: str,
    option: str,
    progress: Transfer,
    *,
    to: Path | None = None,
    access: Access = OPEN,
    check: Callable[[Path], object] = read_header,
) -> Path:
    """Get the newest version of a file that can be had; of a model in parts all, and the path of the first.

    `to`: where to put it, if not into the cache; a file that is there already is taken as it is, parts get
    their own names next to it. `check` raises InvalidRequest for a file of the wrong kind.
    """
    urls = _part_urls(url, option)
    paths = [_place(each, urls, to) for each in urls]
    for each, path in zip(urls, paths, strict=True):
        file = RemoteFile(each, option, _name(each), access.token)
        with locked(path, file, progress):
            if path.exists() and (to is not None or access.offline or _is_current(file, path, progress)):
                continue
            if access.offline:
                raise CorralError(
                    f"{option}: {file.name} is not in the cache, and --offline forbids to get it"
                )
            version = fetch(file, path, progress, check=check, retry=access.retry)
            if to is None:
                _record(path, version)
    return paths[0]


@contextlib.contextmanager
def locked(path: Path, file: RemoteFile, progress: Transfer) -> Iterator[None]:
    """Wait until no other process downloads the file, and keep others from it."""
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
    """The lock that a change of the file needs."""
    directory = cache_dir() / ".locks"
    directory.mkdir(parents=True, exist_ok=True)
    return FileLock(directory / f"{_hash(os.path.realpath(path))}.lock")


def recorded_version(path: Path) -> Version | None:
    """The version of a file in the cache, unless it was replaced since."""
    version = read_version_file(path)
    return version if version is not None and version.mtime_ns == path.stat().st_mtime_ns else None


def _record(path: Path, version: Version) -> None:
    with contextlib.suppress(OSError):  # without a record the sizes are compared
        now, mtime_ns = time.time(), path.stat().st_mtime_ns
        write_version_file(path, msgspec.structs.replace(version, time=now, mtime_ns=mtime_ns))


def _is_current(file: RemoteFile, path: Path, progress: Transfer) -> bool:
    """Whether the file in the cache is what the server has, or the server cannot say."""
    fault = ""
    try:
        theirs = inspect(file)
    except Unreachable:
        fault = f"cannot reach {file.host}"
    except Refused as error:
        status = error.details.get("status", "with no file")
        if status in _NO_HEAD:
            return True
        fault = f"{file.host} answers {status}"
    if fault:
        when = time.strftime("on %Y-%m-%d", time.localtime(path.stat().st_mtime))
        progress.note(f"{fault}: using {file.name} as it was {when}")
        return True
    ours = recorded_version(path)
    if ours is None or not ours.is_identified or not theirs.is_identified:
        is_current = theirs.n_bytes in (None, path.stat().st_size)
    else:
        is_current = ours.is_same(theirs)
    if not is_current:
        progress.note(f"{file.name} has changed on {file.host}, getting the new one")
    return is_current


def _part_urls(url: str, option: str) -> list[str]:
    try:
        parts, host = urlsplit(url), httpx.URL(url).host
        is_right = parts.scheme in ("http", "https") and bool(host) and parts.port != 0
    except (ValueError, httpx.InvalidURL):
        is_right = False
    if not is_right:
        raise CorralError(f"{option}: '{url}' is not an http or https URL")
    return [urlunsplit(parts._replace(path=path)) for path in part_names(parts.path)]


def _place(url: str, urls: list[str], to: Path | None) -> Path:
    """Where a part goes; libllama finds the others by the numbers in their names."""
    if to is None:
        return cache_dir() / f"{_hash(urls[0])}-{_name(url)}"
    return to if len(urls) == 1 else to.with_name(_name(url))


def _name(url: str) -> str:
    name = os.path.basename(unquote(urlsplit(url).path)).replace("\0", "").lstrip(".") or "file"
    return name.encode()[-_MAX_NAME_BYTES:].decode(errors="ignore")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
