"""Convert every exception at the edge to a response in the error format of its API."""

from __future__ import annotations

import logging

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from corral.api.body import JsonResponse
from corral.api.disconnect import ClientGone
from corral.api.error import render_error_for
from corral.core.errors import ContextExceeded, CorralError, InvalidRequest, NotFound
from corral.core.removed import PATHS, explain_removal
from corral.telemetry.record import LEFT

_log = logging.getLogger("corral")
_OPENAI_PATHS = ("/v1/", "/chat/")
# OpenAI clients expect these words where llama-server repeats the status.
_OPENAI_CODES = {ContextExceeded.type: "context_length_exceeded"}


def add_error_handlers(app: Starlette) -> None:
    app.add_exception_handler(CorralError, _on_corral_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(ClientGone, _on_client_gone)
    app.add_exception_handler(ClientDisconnect, _on_client_gone)
    app.add_exception_handler(RecursionError, _on_recursion)
    app.add_exception_handler(Exception, _on_bug)


def _answer(request: Request, error: CorralError) -> Response:
    status, body, headers = render_error_for(request.scope, error)
    return JsonResponse(body, status, headers)


async def _on_corral_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, CorralError)
    if error.type in _OPENAI_CODES and request.url.path.startswith(_OPENAI_PATHS):
        error.details["code"] = _OPENAI_CODES[error.type]
    return _answer(request, error)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        instead = PATHS.get(request.scope["path"])
        return _answer(request, NotFound(explain_removal(instead) if instead else "File Not Found"))
    problem = InvalidRequest(str(error.detail))
    problem.status = error.status_code
    response = _answer(request, problem)
    response.headers.update(error.headers or {})
    if error.status_code == 405:
        methods = request.app.state.table.methods(request.scope)  # starlette reports those of the first route
        response.headers["allow"] = ", ".join(sorted(methods)) or response.headers.get("allow", "")
    return response


async def _on_client_gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=LEFT)


async def _on_recursion(request: Request, _error: Exception) -> Response:
    return _answer(request, InvalidRequest("the body is nested too deeply"))


async def _on_bug(request: Request, error: Exception) -> Response:
    _log.exception("unexpected error", exc_info=error)
    return _answer(request, CorralError("internal error, see the server's log"))
