"""Convert every exception at the edge to a response in the error format of its API."""

from __future__ import annotations

import logging

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Scope

from corral.api.body import JsonResponse
from corral.api.boundary import Handler
from corral.api.error import render_error_for, render_error_in, shape_of
from corral.api.error_shape import ErrorShape
from corral.core.errors import ContextExceeded, CorralError, InvalidRequest, NotFound
from corral.core.removed import PATHS, explain_removal
from corral.generate.caller import caller_in
from corral.generate.disconnect import ClientGone
from corral.telemetry.record import LEFT

_log = logging.getLogger("corral")
_OPENAI_PATHS = ("/v1/", "/chat/")
# OpenAI clients expect these words where llama-server repeats the status.
_OPENAI_CODES = {ContextExceeded.type: "context_length_exceeded"}


def error_handlers() -> dict[type[Exception], Handler]:
    return {
        HTTPException: _on_http_error,
        ClientGone: _on_client_gone,
        ClientDisconnect: _on_client_gone,
        CorralError: _on_error,
        RecursionError: _on_error,
        Exception: _on_error,
    }


def error_response(error: Exception, path: str, shape: ErrorShape, id: str) -> Response:
    """Return the response for an error of a route. `id`: of the request."""
    status, body, headers = render_error_in(shape, id, _known(error, path))
    return JsonResponse(body, status, headers)


def _known(error: Exception, path: str) -> CorralError:
    if isinstance(error, RecursionError):
        return InvalidRequest("the body is nested too deeply")
    if not isinstance(error, CorralError):
        _log.exception("unexpected error", exc_info=error)
        return CorralError("internal error, see the server's log")
    if error.type in _OPENAI_CODES and path.startswith(_OPENAI_PATHS):
        error.details["code"] = _OPENAI_CODES[error.type]
    return error


def _on_error(scope: Scope, error: Exception) -> Response:
    return error_response(error, scope["path"], shape_of(scope), caller_in(scope).record.id)


def _answer(scope: Scope, error: CorralError) -> Response:
    status, body, headers = render_error_for(scope, error)
    return JsonResponse(body, status, headers)


def _on_http_error(scope: Scope, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        instead = PATHS.get(scope["path"])
        return _answer(scope, NotFound(explain_removal(instead) if instead else "File Not Found"))
    problem = InvalidRequest(str(error.detail))
    problem.status = error.status_code
    response = _answer(scope, problem)
    response.headers.update(error.headers or {})
    if error.status_code == 405:
        methods = scope["app"].table.methods(scope)  # starlette reports those of the first route
        response.headers["allow"] = ", ".join(sorted(methods)) or response.headers.get("allow", "")
    return response


def _on_client_gone(_scope: Scope, _error: Exception) -> Response:
    return Response(status_code=LEFT)
