"""`/docs`: the API to read and try, with nothing that comes from another host."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from corral.server.packaged import packaged_response
from corral.server.page import FOLDER, register_types

_FILES = {
    "": "docs.html",
    "docs.js": "js/docs.js",
    "swagger-ui.css": "vendor/swagger-ui/swagger-ui.css",
    "swagger-ui-bundle.js": "vendor/swagger-ui/swagger-ui-bundle.js",
}


def add_docs(app: FastAPI) -> None:
    """Routes of their own: they need a key where there are keys, and are there without a page too."""
    register_types()

    @app.api_route("/docs", methods=["GET", "HEAD"], include_in_schema=False)
    @app.api_route("/docs/{name}", methods=["GET", "HEAD"], include_in_schema=False)
    async def docs(request: Request, name: str = "") -> Response:
        if name not in _FILES:
            raise HTTPException(404)
        return await run_in_threadpool(packaged_response, str(FOLDER / _FILES[name]), request.scope)
