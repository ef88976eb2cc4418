"""Serve files of the package: compressed once, with an ETag of their content and a Content-Security-Policy.

starlette's `FileResponse` derives the ETag from date and size, which an upgrade may not change, and its
`GZipMiddleware` compresses every response. Reads files; call it from a thread.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import mimetypes
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

# Only scripts and styles of this server. The page shows text from models; their images are data URLs.
_POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; media-src 'self' data: blob:; object-src 'none'; "
    "base-uri 'none'; frame-ancestors 'none'; form-action 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # revalidate always, so that modules of two versions are never mixed
    "vary": "accept-encoding",
}
_NO_HEADERS: Mapping[str, str] = {}
_WORTH_IT = 0.9  # maximum ratio of compressed to plain size
_NO_GZIP = re.compile(r"q=0(\.0*)?")


class _Copy(NamedTuple):
    plain: bytes
    packed: bytes  # empty if compression does not pay
    digest: str


def page_policy(origins: Sequence[str]) -> Mapping[str, str]:
    """Return the headers that let scripts of a page call other origins."""
    policy = f"{_POLICY}; connect-src 'self' {' '.join(origins)}"
    return {"content-security-policy": policy} if origins else _NO_HEADERS


def packaged_response(path: str, scope: Scope, others: Mapping[str, str] = _NO_HEADERS) -> Response:
    """Return the file, or 304 if the client has it already. `others` replace headers. Raises OSError."""
    stat = os.stat(path)
    copy, asked = _read(path, stat.st_mtime_ns, stat.st_size), Headers(scope=scope)
    is_packed = bool(copy.packed) and _accepts_gzip(asked.get("accept-encoding", ""))
    etag = f'"{copy.digest}-gzip"' if is_packed else f'"{copy.digest}"'
    headers = {**_HEADERS, **others, "etag": etag}
    if _has_it(etag, asked.get("if-none-match", "")):
        return Response(status_code=304, headers=headers)
    body = copy.packed if is_packed else copy.plain
    headers["content-length"] = str(len(body))
    if is_packed:
        headers["content-encoding"] = "gzip"
    media_type = mimetypes.guess_type(path)[0] or "application/octet-stream"
    return Response(b"" if scope["method"] == "HEAD" else body, headers=headers, media_type=media_type)


@functools.lru_cache(maxsize=512)
def _read(path: str, _mtime_ns: int, _n_bytes: int) -> _Copy:
    """Read and compress a file; the cache key changes with the file."""
    plain = Path(path).read_bytes()
    packed = gzip.compress(plain, mtime=0)
    if len(packed) > len(plain) * _WORTH_IT:
        packed = b""
    return _Copy(plain, packed, hashlib.sha256(plain).hexdigest()[:32])


def _accepts_gzip(header: str) -> bool:
    for part in header.lower().split(","):
        name, _, weight = part.partition(";")
        if name.strip() in ("gzip", "*"):
            return _NO_GZIP.fullmatch(weight.strip()) is None
    return False


def _has_it(etag: str, header: str) -> bool:
    tags = [tag.strip().removeprefix("W/") for tag in header.split(",")]
    return etag in tags or "*" in tags
