"""`/openapi.json`, and `/docs`, which shows it without resources from other hosts."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from corral.api.body import JsonResponse
from corral.api.error_shape import LLAMA_ERRORS
from corral.api.policy import for_server
from corral.api.router import Router
from corral.core.key_role import Permission
from corral.generate.services import ServerServices
from corral.server.packaged import packaged_response
from corral.server.page import FOLDER, register_types

_FILES = {
    "": "docs.html",
    "docs.js": "js/docs.js",
    "swagger-ui.css": "vendor/swagger-ui/swagger-ui.css",
    "swagger-ui-bundle.js": "vendor/swagger-ui/swagger-ui-bundle.js",
}


router = Router()  # requires a key if there are keys, and also exists without the web UI


@router.get(
    "/openapi.json",
    operation=None,
    policy=for_server(Permission.ANY, LLAMA_ERRORS),
)
async def description(_request: Request, services: ServerServices) -> Response:
    """The description of all routes."""
    return JsonResponse(await run_in_threadpool(services.openapi))


@router.get(
    "/docs",
    "/docs/{name}",
    operation=None,
    policy=for_server(Permission.ANY, LLAMA_ERRORS),
)
async def docs(request: Request, _services: ServerServices, name: str = "") -> Response:
    """The page and its files."""
    if name not in _FILES:
        raise HTTPException(404)
    register_types()
    return await run_in_threadpool(packaged_response, str(FOLDER / _FILES[name]), request.scope)
