"""Files of the package as answers: compressed once, told apart by what is in them, kept to their own host.

Reads files; call it from a thread.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
import os
import re
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

# Scripts and styles of this server only; models write what is shown, and their pictures come as data.
_POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; media-src 'self' data: blob:; object-src 'none'; "
    "base-uri 'none'; frame-ancestors 'none'; form-action 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # to be asked for every time: no module meets those of another version
    "vary": "accept-encoding",
}
_WORTH_IT = 0.9  # of the size, or less, to be sent compressed
_NO_GZIP = re.compile(r"q=0(\.0*)?")


@dataclass(frozen=True, slots=True)
class _Copy:
    """A file's content, and when it was that."""

    state: tuple[int, int]
    plain: bytes
    packed: bytes  # empty where that is not worth it
    digest: str


@dataclass(frozen=True, slots=True)
class PackagedFiles:
    """Mutable: what has been read; what changes on disk is read again."""

    _copies: dict[str, _Copy] = field(default_factory=dict)

    def answer(self, path: str, scope: Scope) -> Response:
        """The file, or only that the client has it already. Raises OSError."""
        copy, asked = self._copy(path), Headers(scope=scope)
        is_packed = bool(copy.packed) and _accepts_gzip(asked.get("accept-encoding", ""))
        etag = f'"{copy.digest}-gzip"' if is_packed else f'"{copy.digest}"'
        headers = {**_HEADERS, "etag": etag}
        if _has_it(etag, asked.get("if-none-match", "")):
            return Response(status_code=304, headers=headers)
        body = copy.packed if is_packed else copy.plain
        headers["content-length"] = str(len(body))
        if is_packed:
            headers["content-encoding"] = "gzip"
        media_type = mimetypes.guess_type(path)[0] or "application/octet-stream"
        return Response(b"" if scope["method"] == "HEAD" else body, headers=headers, media_type=media_type)

    def _copy(self, path: str) -> _Copy:
        stat = os.stat(path)
        state = (stat.st_mtime_ns, stat.st_size)
        copy = self._copies.get(path)
        if copy is None or copy.state != state:
            copy = self._copies[path] = _read(path, state)
        return copy


def _read(path: str, state: tuple[int, int]) -> _Copy:
    with open(path, "rb") as file:
        plain = file.read()
    packed = gzip.compress(plain, mtime=0)
    if len(packed) > len(plain) * _WORTH_IT:
        packed = b""
    return _Copy(state, plain, packed, hashlib.sha256(plain).hexdigest()[:32])


def _accepts_gzip(header: str) -> bool:
    for part in header.lower().split(","):
        name, _, weight = part.partition(";")
        if name.strip() in ("gzip", "*"):
            return _NO_GZIP.fullmatch(weight.strip()) is None
    return False


def _has_it(etag: str, header: str) -> bool:
    tags = [tag.strip().removeprefix("W/") for tag in header.split(",")]
    return etag in tags or "*" in tags
