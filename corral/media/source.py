"""Load the bytes of images and audio by the scheme of their URL."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from corral.media.data_uri import parse_data_uri
from corral.media.decoded import BadMedia

if TYPE_CHECKING:
    from corral.core.media_item import MediaKind
    from corral.media.local import LocalMedia
    from corral.media.remote import RemoteMedia

MAX_URL_CHARS = 8192  # of URLs that are not data:

_INLINE_CHARS = 1 << 20  # longer data URIs are decoded in a thread


class MediaSource:
    """Loads `data:` URIs always, other URLs if the server was started with support for them."""

    def __init__(self, remote: RemoteMedia | None, local: LocalMedia | None) -> None:
        self._remote = remote
        self._local = local

    async def load(self, url: str, kind: MediaKind) -> bytes:
        """Load an encoded item."""
        scheme, colon, _ = url[:16].lower().partition(":")
        if colon and scheme == "data":
            return await _decode(url, kind)
        if colon and scheme in ("http", "https"):
            return await self.fetch(url)
        if colon and scheme == "file":
            return await self._read(_short(url))
        raise BadMedia("its URL must begin with data:, http:, https: or file:")

    async def fetch(self, url: str) -> bytes:
        """Fetch an http(s) URL."""
        if self._remote is None:
            raise BadMedia(
                "URLs are not fetched by this server; start it with --allow-remote-media, or send a data: URI"
            )
        return await self._remote.fetch(_short(url))

    async def _read(self, url: str) -> bytes:
        if self._local is None:
            raise BadMedia(
                "files are not read by this server; start it with --media-path DIR, or send a data: URI"
            )
        return await asyncio.to_thread(self._local.read, url)


async def _decode(uri: str, kind: MediaKind) -> bytes:
    if len(uri) > _INLINE_CHARS:
        return await asyncio.to_thread(parse_data_uri, uri, kind)
    return parse_data_uri(uri, kind)


def _short(url: str) -> str:
    if len(url) > MAX_URL_CHARS:
        raise BadMedia(f"its URL is longer than {MAX_URL_CHARS} characters")
    return url


def open_remote(is_allowed: bool) -> RemoteMedia | None:
    if not is_allowed:
        return None
    from corral.media.remote import RemoteMedia  # takes a while, and few servers need it

    return RemoteMedia()
