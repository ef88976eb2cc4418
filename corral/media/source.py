"""Load the bytes of images and audio by the scheme of their URL."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from corral.core.media_item import MediaKind
from corral.media.data_uri import parse_data_uri
from corral.media.local import LocalMedia
from corral.media.sample import BadMedia

if TYPE_CHECKING:
    from corral.media.remote import RemoteMedia

MAX_URL_CHARS = 8192  # of those that only name a place

_INLINE_CHARS = 1 << 20  # a data URI that is longer is decoded in a thread


class MediaSource:
    """`data:` URIs always; the rest if the server was started with a place to look for it."""

    def __init__(self, remote: RemoteMedia | None, local: LocalMedia | None) -> None:
        self._remote = remote
        self._local = local

    async def load(self, url: str, kind: MediaKind) -> bytes:
        """Load an encoded item."""
        scheme, colon, _ = url[:16].lower().partition(":")
        if colon and scheme == "data":
            return await _decode(url, kind)
        if colon and scheme in ("http", "https"):
            return await self._fetch(_short(url))
        if colon and scheme == "file":
            return await self._read(_short(url))
        raise BadMedia("its URL must begin with data:, http:, https: or file:")

    async def _fetch(self, url: str) -> bytes:
        if self._remote is None:
            raise BadMedia(
                "URLs are not fetched; start the server with --allow-remote-media, or send a data: URI"
            )
        return await self._remote.fetch(url)

    async def _read(self, url: str) -> bytes:
        if self._local is None:
            raise BadMedia("files are not read; start the server with --media-path DIR, or send a data: URI")
        return await asyncio.to_thread(self._local.read, url)


async def _decode(uri: str, kind: MediaKind) -> bytes:
    if len(uri) > _INLINE_CHARS:
        return await asyncio.to_thread(parse_data_uri, uri, kind)
    return parse_data_uri(uri, kind)


def _short(url: str) -> str:
    if len(url) > MAX_URL_CHARS:
        raise BadMedia(f"its URL is longer than {MAX_URL_CHARS} characters")
    return url
