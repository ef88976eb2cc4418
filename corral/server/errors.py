"""Convert every exception at the edge to a response in the error format of its API."""

from __future__ import annotations

import logging

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Scope

from corral.api.body import JsonResponse
from corral.api.disconnect import ClientGone
from corral.api.error import render_error_for
from corral.core.errors import ContextExceeded, CorralError, InvalidRequest, NotFound
from corral.core.removed import PATHS, explain_removal
from corral.server.boundary import Handler
from corral.telemetry.record import LEFT

_log = logging.getLogger("corral")
_OPENAI_PATHS = ("/v1/", "/chat/")
# OpenAI clients expect these words where llama-server repeats the status.
_OPENAI_CODES = {ContextExceeded.type: "context_length_exceeded"}


def error_handlers() -> dict[type[Exception], Handler]:
    return {
        CorralError: _on_corral_error,
        HTTPException: _on_http_error,
        ClientGone: _on_client_gone,
        ClientDisconnect: _on_client_gone,
        RecursionError: _on_recursion,
        Exception: _on_bug,
    }


def _answer(scope: Scope, error: CorralError) -> Response:
    status, body, headers = render_error_for(scope, error)
    return JsonResponse(body, status, headers)


def _on_corral_error(scope: Scope, error: Exception) -> Response:
    assert isinstance(error, CorralError)
    if error.type in _OPENAI_CODES and scope["path"].startswith(_OPENAI_PATHS):
        error.details["code"] = _OPENAI_CODES[error.type]
    return _answer(scope, error)


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
        methods = scope["app"].state.table.methods(scope)  # starlette reports those of the first route
        response.headers["allow"] = ", ".join(sorted(methods)) or response.headers.get("allow", "")
    return response


def _on_client_gone(_scope: Scope, _error: Exception) -> Response:
    return Response(status_code=LEFT)


def _on_recursion(scope: Scope, _error: Exception) -> Response:
    return _answer(scope, InvalidRequest("the body is nested too deeply"))


def _on_bug(scope: Scope, error: Exception) -> Response:
    _log.exception("unexpected error", exc_info=error)
    return _answer(scope, CorralError("internal error, see the server's log"))
