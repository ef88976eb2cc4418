"""Errors in the format of OpenAI's Responses API."""

from __future__ import annotations

from typing import Any

from corral.api.error_shape import ErrorShape
from corral.core.errors import ContextExceeded, CorralError, InvalidRequest, Unauthorized, Unavailable

# Ours, and what clients of this API expect: they repeat a request after a 5xx.
_STATUSES = {501: 400, 507: 503}
_CODES: dict[type[CorralError], str] = {
    ContextExceeded: "context_length_exceeded",
    Unauthorized: "invalid_api_key",
    Unavailable: "server_overloaded",
}
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "ResponsesError",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        },
    },
}


def render_error(error: CorralError, request_id: str = "") -> dict[str, Any]:  # noqa: ARG001
    body = {
        **error.details,
        "message": error.message,
        "type": _type(error),
        "param": error.details.get("param"),
        "code": code_of(error),
    }
    return {"error": body}


def render_event(error: CorralError, sequence_number: int) -> dict[str, Any]:
    """Return the event that ends a stream before its response has begun."""
    param = error.details.get("param")
    return {
        "type": "error",
        "code": code_of(error),
        "message": error.message,
        "param": param,
        "sequence_number": sequence_number,
    }


def render_failure(error: CorralError) -> dict[str, str]:
    """Return the error of a failed response. Clients read its code to shorten a conversation."""
    code = "invalid_prompt" if isinstance(error, InvalidRequest) else "server_error"
    if isinstance(error, ContextExceeded):
        code = _CODES[ContextExceeded]
    return {"code": code, "message": error.message}


def code_of(error: CorralError) -> str | None:
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), None)


def _type(error: CorralError) -> str:
    """Return the error type; OpenAI has one for all invalid requests."""
    return InvalidRequest.type if isinstance(error, InvalidRequest) else error.type


RESPONSES_ERRORS = ErrorShape("Responses", render_error, _STATUSES, _SCHEMA)
