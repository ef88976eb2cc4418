"""Files from URLs: downloaded once into the cache of the user, and only whole."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx

from corral.core.cache_dir import cache_dir
from corral.core.errors import CorralError

_TIMEOUT_S = 60.0  # without a byte


def download(url: str, option: str, on_progress: Callable[[float], None] = lambda _: None) -> Path:
    """Where the file is that a URL names; what was downloaded before is not asked for again."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise CorralError(f"{option}: '{url}' is no http or https URL")
    name = os.path.basename(unquote(parts.path)).lstrip(".") or "file"
    path = cache_dir() / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}-{name}"
    if path.is_file():
        return path
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _fetch(url, part, on_progress)
        part.replace(path)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise CorralError(f"{option}: '{url}' cannot be downloaded: {error}") from None
    except OSError as error:
        raise CorralError(f"{option}: cannot write {path}: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)
    return path


def _fetch(url: str, path: Path, on_progress: Callable[[float], None]) -> None:
    with (
        httpx.stream("GET", url, follow_redirects=True, timeout=_TIMEOUT_S) as response,
        open(path, "wb") as file,
    ):
        response.raise_for_status()
        n_all = int(response.headers.get("content-length", 0))
        for piece in response.iter_bytes():
            file.write(piece)
            if n_all:
                on_progress(response.num_bytes_downloaded / n_all)
        if n_all and response.num_bytes_downloaded < n_all:
            raise httpx.ReadError("the connection ended too early")
        file.flush()
        os.fsync(file.fileno())
