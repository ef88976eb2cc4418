"""Download files from URLs into the user's cache, and again when they have changed.

A record of version and origin lies next to each file. Locks keep two processes from downloading the same
file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

import httpx
from filelock import FileLock, Timeout

from corral.core.cache_dir import cache_dir
from corral.core.errors import CorralError
from corral.gguf.model_file import part_names
from corral.gguf.preflight import read_header
from corral.models.files.fetch import PATIENT, RetryPolicy, fetch, read_version_file, write_version_file
from corral.models.files.remote_file import Refused, RemoteFile, Unreachable, Version
from corral.models.files.transfer import Transfer

_MAX_NAME_BYTES = 180
_NO_HEAD = (405, 501)


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach files. The token is sent to the host of the URL only; `offline` makes no request."""

    token: str = ""
    offline: bool = False
    retry: RetryPolicy = PATIENT


OPEN = Access()


def download(
    url: str, option: str, progress: Transfer, *, to: Path | None = None, access: Access = OPEN
) -> Path:
    """Download the newest available version of a model and return its path; of a split model, all parts and
    the path of the first.

    `to`: the target outside of the cache. A file that exists there is used as it is; parts get
    their own names next to it.
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
                    f"{option}: {file.name} is not cached, and --offline forbids downloading it"
                )
            version = fetch(file, path, progress, check=read_header, retry=access.retry)
            if to is None:
                with contextlib.suppress(OSError):  # without a record, sizes are compared
                    write_version_file(path, version)
    return paths[0]


@contextlib.contextmanager
def locked(path: Path, file: RemoteFile, progress: Transfer) -> Iterator[None]:
    """Hold the lock of a file, after waiting for another process that downloads it."""
    try:
        lock = lock_of(path)
        try:
            held = lock.acquire(timeout=0)
        except Timeout:
            progress.note(f"another process is downloading {file.name}, waiting for it")
            held = lock.acquire()
    except OSError as error:
        raise CorralError(
            f"{file.option}: cannot write to {cache_dir()}: {error.strerror}; set LLAMA_CACHE to "
            "another directory"
        ) from None
    with held:
        yield


def lock_of(path: Path) -> FileLock:
    """Return the lock that must be held to change the file."""
    directory = cache_dir() / ".locks"
    directory.mkdir(parents=True, exist_ok=True)
    return FileLock(directory / f"{_hash(os.path.realpath(path))}.lock")


def recorded_version(path: Path) -> Version | None:
    """The version of a file in the cache, unless one of another size has replaced it since."""
    version = read_version_file(path)
    return version if version is not None and version.n_bytes == path.stat().st_size else None


def _is_current(file: RemoteFile, path: Path, progress: Transfer) -> bool:
    """Whether the cached file matches the server's version, or the server cannot be asked."""
    try:
        theirs = file.inspect()
    except (Unreachable, Refused) as error:
        status = error.details.get("status", "with no file")
        if status not in _NO_HEAD:
            is_refused = isinstance(error, Refused)
            fault = f"{file.host} returned {status}" if is_refused else f"cannot reach {file.host}"
            when = time.strftime("on %Y-%m-%d", time.localtime(path.stat().st_mtime))
            progress.note(f"{fault}: using the copy of {file.name} from {when}")
        return True
    ours = recorded_version(path)
    if ours is None or not ours.is_identified or not theirs.is_identified:
        is_current = theirs.n_bytes in (None, path.stat().st_size)
    else:
        is_current = ours.is_same(theirs)
    if not is_current:
        progress.note(f"{file.name} has changed on {file.host}, downloading it again")
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
    """Return the path of a part. libllama finds the other parts by the numbers in their names."""
    if to is None:
        return cache_dir() / f"{_hash(urls[0])}-{_name(url)}"
    return to if len(urls) == 1 else to.with_name(_name(url))


def _name(url: str) -> str:
    name = os.path.basename(unquote(urlsplit(url).path)).replace("\0", "").lstrip(".") or "file"
    return name.encode()[-_MAX_NAME_BYTES:].decode(errors="ignore")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
