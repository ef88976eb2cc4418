"""Static files at `/` for paths without a route: the packaged web UI, the directory of `--path`, or nothing.

Never serves a file outside of the directory or a hidden one.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from corral.core.errors import CorralError
from corral.core.settings import ServerSettings
from corral.models.defaults import text_of
from corral.server import artifact_policy
from corral.server.packaged import packaged_response, page_policy

FOLDER = Path(__file__).parents[1] / "webui"
_PAGES = {
    "/monitor": "monitor.html",
    "/favicon.ico": "icon.svg",
    **dict.fromkeys(artifact_policy.PATHS, artifact_policy.FILE),
}
_SHARED = "/completion.js"
_HIDDEN_BUT_KNOWN = ".well-known"
_READING = ("GET", "HEAD")
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


def open_page(server: ServerSettings) -> ASGIApp | None:
    """Return the application for static files; None without a web UI. Raises CorralError if --path is not a
    directory."""
    if not server.ui:
        return None
    register_types()
    own = Page(
        server.ui_mcp_origins, directory=FOLDER, html=True, follow_symlink=True
    )  # installers may link files
    return OtherPage(open_static(server.static_path), own) if server.static_path else own


def open_static(path: str) -> StaticDirectory:
    """Serve a directory. Raises CorralError if it does not exist."""
    if not Path(path).is_dir():
        raise CorralError(f"--path '{path}' is not a directory")
    register_types()
    return StaticDirectory(directory=path, html=True, follow_symlink=False)


def register_types() -> None:
    """Register the MIME types that browsers require, whatever the system's table says."""
    for suffix, media_type in _TYPES.items():
        mimetypes.add_type(media_type, suffix)


def ui_settings(server: ServerSettings) -> dict[str, Any]:
    """Return the initial settings of the web UI. Raises CorralError unless they are a JSON object."""
    option = "--ui-config-file" if server.ui_config_file else "--ui-config"
    text = text_of(server.ui_config, server.ui_config_file, option)
    try:
        settings = orjson.loads(text or "{}")
    except orjson.JSONDecodeError as error:
        raise CorralError(f"{option} is not valid JSON: {error}") from None
    if not isinstance(settings, dict):
        raise CorralError(f"{option} must be a JSON object")
    return settings


class StaticDirectory(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        if any(_is_hidden(name) for name in PurePosixPath(path).parts):
            raise HTTPException(404)
        try:
            response = await super().get_response(path, {**scope, "method": "GET"})
        except (HTTPException, OSError):  # unreadable, or a loop of links
            raise HTTPException(404) from None
        if response.status_code == 404:
            raise HTTPException(404)  # in the common error format, even if there is a 404 page
        if scope["method"] not in _READING:
            raise HTTPException(405, headers={"allow": ", ".join(_READING)})
        if isinstance(response, RedirectResponse):
            response.headers["location"] = _folder_address(scope)
        return response


class Page(StaticDirectory):
    """The packaged web UI. `origins`: others that its scripts may call."""

    def __init__(self, origins: Sequence[str] = (), **options: Any) -> None:
        super().__init__(**options)
        self._origins = origins

    async def get_response(self, path: str, scope: Scope) -> Response:
        # Caching uses the ETag of the content, not the date, so drop conditional headers.
        found = await super().get_response(_PAGES.get(scope["path"], path), {**scope, "headers": []})
        if not isinstance(found, FileResponse):
            return found
        try:
            return await run_in_threadpool(self._packaged, Path(found.path), scope)
        except OSError:
            raise HTTPException(404) from None

    def _packaged(self, path: Path, scope: Scope) -> Response:
        if path.name == artifact_policy.FILE:
            headers = artifact_policy.artifact_headers(scope["path"], path)
        else:
            headers = page_policy(self._origins)
        return packaged_response(str(path), scope, headers)


class OtherPage:
    """ASGI application: the operator's own files, and the one packaged file that they need to call the
    server."""

    def __init__(self, files: StaticDirectory, own: Page) -> None:
        self._files = files
        self._own = own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._files(scope, receive, send)
        except HTTPException as error:
            if error.status_code != 404 or scope["path"] != _SHARED:
                raise
            await self._own(scope, receive, send)


def _folder_address(scope: Scope) -> str:
    """Return the address of a folder that was asked for without its slash. It is relative, because only the
    browser knows all prefixes of the path: that of `--api-prefix`, and those that a proxy removes."""
    query = scope["query_string"].decode("latin-1")
    return f"./{quote(PurePosixPath(scope['path']).name)}/" + (f"?{query}" if query else "")


def _is_hidden(name: str) -> bool:
    return name.startswith(".") and name not in (".", _HIDDEN_BUT_KNOWN)
