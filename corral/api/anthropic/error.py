"""Errors in the format of Anthropic's Messages API."""

from __future__ import annotations

from typing import Any

from corral.api.error_shape import ErrorShape
from corral.core.errors import ContextExceeded, CorralError

VERSION_HEADER = b"anthropic-version"
ID_HEADER = b"request-id"
# Our statuses, and those that clients of this API expect: they retry after 529, but not after 400.
_STATUSES = {501: 400, 503: 529, 507: 529}
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}
_OTHER = "invalid_request_error"
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "MessagesError",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {
                "type": {"enum": sorted({*_TYPES.values(), _OTHER})},
                "message": {"type": "string"},
                "param": {"type": "string"},
            },
        },
        "request_id": {"type": "string"},
    },
}


def render_error(error: CorralError, request_id: str = "") -> dict[str, Any]:
    status = _STATUSES.get(error.status, error.status)
    body = {"type": _TYPES.get(status, _OTHER), "message": _message(error), **error.details}
    return {"type": "error", "error": body, **({"request_id": request_id} if request_id else {})}


def _message(error: CorralError) -> str:
    """Return the message. Clients look for "prompt is too long" to shorten a conversation."""
    if not isinstance(error, ContextExceeded):
        return error.message
    n_tokens, n_ctx = error.details["n_prompt_tokens"], error.details["n_ctx"]
    return f"prompt is too long: {n_tokens} tokens > {n_ctx} maximum (--ctx-size)"


MESSAGES_ERRORS = ErrorShape("Messages", render_error, _STATUSES, _SCHEMA, id_header=ID_HEADER)
