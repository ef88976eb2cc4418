"""The error formats of the APIs. Uses no framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from corral.api.dialects.messages import error as messages
from corral.api.dialects.ollama import error as ollama
from corral.api.dialects.responses import error as responses
from corral.core.errors import CorralError, UnknownModel


@dataclass(frozen=True, slots=True, eq=False)
class ErrorShape:
    """The error format of one API. `statuses`: its replacements for our statuses."""

    name: str
    render: Callable[[CorralError, str], dict[str, Any]]  # with the id of the request
    statuses: Mapping[int, int]
    schema: Mapping[str, Any]
    unknown_model: int = UnknownModel.status
    id_header: bytes = b""  # of answers, with the id of the request

    def status(self, error: CorralError) -> int:
        if isinstance(error, UnknownModel):
            return self.unknown_model
        return self.statuses.get(error.status, error.status)


def render_error(error: CorralError, _id: str = "") -> dict[str, Any]:
    """Return an error in llama-server's format."""
    return {"error": {"code": error.status, "message": error.message, "type": error.type, **error.details}}


LLAMA_ERRORS = ErrorShape("", render_error, {}, {})
MESSAGES_ERRORS = ErrorShape(
    "Messages", messages.render_error, messages.STATUSES, messages.SCHEMA, id_header=messages.ID_HEADER
)
RESPONSES_ERRORS = ErrorShape("Responses", responses.render_error, responses.STATUSES, responses.SCHEMA)
OLLAMA_ERRORS = ErrorShape(
    "Ollama",
    ollama.render_error,
    ollama.STATUSES,
    ollama.SCHEMA,
    unknown_model=404,  # compat: /api/chat: clients then pull the model
)
