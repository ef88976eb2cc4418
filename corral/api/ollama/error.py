"""Errors in ollama's format: only a message."""

from __future__ import annotations

from typing import Any

from corral.api.error_shape import ErrorShape
from corral.core.errors import CorralError

_STATUSES = {501: 400, 507: 503}  # ours, and what this API answers
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "OllamaError",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
}


def render_error(error: CorralError, request_id: str = "") -> dict[str, Any]:  # noqa: ARG001
    return {"error": error.message}


OLLAMA_ERRORS = ErrorShape(
    "Ollama",
    render_error,
    _STATUSES,
    _SCHEMA,
    unknown_model=404,  # compat: /api/chat: clients then pull the model
)
