"""Files of a directory at `/`, where no route is: never anything outside of it, never what is hidden."""

from __future__ import annotations

import mimetypes
from pathlib import Path, PurePosixPath

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from corral.core.errors import CorralError

_TYPES = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".map": "application/json",
    ".wasm": "application/wasm",
    ".webmanifest": "application/manifest+json",
    ".webp": "image/webp",
    ".woff2": "font/woff2",
}
_HIDDEN_BUT_KNOWN = ".well-known"
_READING = ("GET", "HEAD")


def open_static(path: str) -> StaticDirectory:
    """Raises CorralError if there is no such directory."""
    if not Path(path).is_dir():
        raise CorralError(f"--path '{path}' is no directory")
    register_types()
    return StaticDirectory(directory=path, html=True, follow_symlink=False)


def register_types() -> None:
    """What browsers insist on, whatever the machine thinks."""
    for suffix, media_type in _TYPES.items():
        mimetypes.add_type(media_type, suffix)


class StaticDirectory(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        if any(_is_hidden(name) for name in PurePosixPath(path).parts):
            raise HTTPException(404)
        try:
            response = await super().get_response(path, {**scope, "method": "GET"})
        except (HTTPException, OSError):  # one that cannot be read, or leads in a circle
            raise HTTPException(404) from None
        if response.status_code == 404:
            raise HTTPException(404)  # in the shape of all errors, also if there is a page for it
        if scope["method"] not in _READING:
            raise HTTPException(405, headers={"allow": ", ".join(_READING)})
        response.headers["x-content-type-options"] = "nosniff"
        return response


def _is_hidden(name: str) -> bool:
    return name.startswith(".") and name not in (".", _HIDDEN_BUT_KNOWN)
