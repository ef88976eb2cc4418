"""Every exception that reaches the edge becomes llama-server's error shape, here and nowhere else."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request, Response
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import compile_path

from corral.api.body import JsonResponse
from corral.api.disconnect import ClientGone
from corral.api.error import render_error
from corral.core.errors import ContextExceeded, CorralError, InvalidRequest, NotFound, Unavailable
from corral.telemetry.middleware import LEFT

_log = logging.getLogger("corral")
_OPENAI_PATHS = ("/v1/", "/chat/")
# OpenAI's clients look for these words where llama-server has the status once more.
_OPENAI_CODES = {ContextExceeded.type: "context_length_exceeded"}


def add_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(CorralError, _on_corral_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(ClientGone, _on_client_gone)
    app.add_exception_handler(ClientDisconnect, _on_client_gone)
    app.add_exception_handler(RecursionError, _on_recursion)
    app.add_exception_handler(Exception, _on_bug)


def _answer(error: CorralError) -> Response:
    retry_after_s = error.retry_after_s if isinstance(error, Unavailable) else None
    headers = {"retry-after": str(retry_after_s)} if retry_after_s is not None else None
    return JsonResponse(render_error(error), error.status, headers)


async def _on_corral_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, CorralError)
    if error.type in _OPENAI_CODES and request.url.path.startswith(_OPENAI_PATHS):
        error.details["code"] = _OPENAI_CODES[error.type]
    return _answer(error)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return _answer(NotFound("File Not Found"))
    problem = InvalidRequest(str(error.detail))
    problem.status = error.status_code
    response = _answer(problem)
    response.headers.update(error.headers or {})
    if error.status_code == 405:
        response.headers["allow"] = _methods_of(request) or response.headers.get("allow", "")
    return response


def _methods_of(request: Request) -> str:
    """What a path can do: its routes may be several, and starlette tells of the first one."""
    path, found = request.url.path, set[str]()
    for route in iter_route_contexts(request.app.routes):
        if route.path is not None and compile_path(route.path)[0].match(path):
            found |= route.methods or set()
    if "GET" in found:
        found.add("HEAD")
    return ", ".join(sorted(found))


async def _on_client_gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=LEFT)


async def _on_recursion(_request: Request, _error: Exception) -> Response:
    return _answer(InvalidRequest("the body is nested too deeply"))


async def _on_bug(_request: Request, error: Exception) -> Response:
    _log.exception("unexpected error", exc_info=error)
    return _answer(CorralError("internal error, see the server's log"))
