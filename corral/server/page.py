"""What is at `/`: the page of the package, somebody's own directory, or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from corral.core.errors import CorralError
from corral.core.settings import ServerSettings
from corral.server.defaults import text_of
from corral.server.packaged import packaged_response
from corral.server.static import StaticDirectory, open_static, register_types

FOLDER = Path(__file__).parents[1] / "webui"
_PAGES = {"/monitor": "monitor.html", "/favicon.ico": "icon.svg"}
_SHARED = "/completion.js"


def open_page(server: ServerSettings) -> ASGIApp | None:
    """Raises CorralError if there is no such directory."""
    if not server.ui:
        return None
    register_types()
    own = Page(directory=FOLDER, html=True, follow_symlink=True)  # installers may link files
    return OtherPage(open_static(server.static_path), own) if server.static_path else own


def ui_settings(server: ServerSettings) -> dict[str, Any]:
    """What the page begins with where nobody has chosen; raises CorralError if it is no JSON object."""
    option = "--ui-config-file" if server.ui_config_file else "--ui-config"
    text = text_of(server.ui_config, server.ui_config_file, option)
    try:
        settings = orjson.loads(text or "{}")
    except orjson.JSONDecodeError as error:
        raise CorralError(f"{option} is not valid JSON: {error}") from None
    if not isinstance(settings, dict):
        raise CorralError(f"{option} must be a JSON object")
    return settings


class Page(StaticDirectory):
    """The files of the package."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        # Whether a client has a file already is told by its content, not by its date.
        found = await super().get_response(_PAGES.get(scope["path"], path), {**scope, "headers": []})
        if not isinstance(found, FileResponse):
            return found
        try:
            return await run_in_threadpool(packaged_response, str(found.path), scope)
        except OSError:
            raise HTTPException(404) from None


class OtherPage:
    """ASGI application: somebody's own files, and the one of ours that they need to talk to the server."""

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
