"""Errors in ollama's format: only a message."""

from __future__ import annotations

from typing import Any

from corral.core.errors import CorralError

STATUSES = {501: 400, 507: 503}  # ours, and what this API answers
SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "OllamaError",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
}


def render_error(error: CorralError, request_id: str = "") -> dict[str, Any]:  # noqa: ARG001
    return {"error": error.message}
