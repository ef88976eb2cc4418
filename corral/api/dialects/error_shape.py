"""Choose the error format of a request's API. Uses no framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import Scope

from corral.api.dialects.messages import error as messages
from corral.api.dialects.ollama import error as ollama
from corral.api.dialects.responses import error as responses
from corral.core.errors import CorralError, UnknownModel


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """The error format of one API. `statuses`: its replacements for our statuses."""

    name: str
    prefixes: tuple[str, ...]
    render: Callable[[CorralError, str], dict[str, Any]]  # with the id of the request
    statuses: Mapping[int, int]
    schema: Mapping[str, Any]
    unknown_model: int = UnknownModel.status
    header: bytes = b""  # with which a request names this API
    id_header: bytes = b""  # of answers, with the id of the request

    def has(self, path: str) -> bool:
        return any(path == prefix or path.startswith(f"{prefix}/") for prefix in self.prefixes)

    def status(self, error: CorralError) -> int:
        if isinstance(error, UnknownModel):
            return self.unknown_model
        return self.statuses.get(error.status, error.status)


_SHAPES = (
    ErrorShape(
        name="Messages",
        prefixes=("/v1/messages",),
        render=messages.render_error,
        statuses=messages.STATUSES,
        schema=messages.SCHEMA,
        header=messages.VERSION_HEADER,
        id_header=messages.ID_HEADER,
    ),
    ErrorShape(
        name="Responses",
        prefixes=("/v1/responses", "/responses", "/v1/conversations", "/v1/files", "/v1/batches"),
        render=responses.render_error,
        statuses=responses.STATUSES,
        schema=responses.SCHEMA,
    ),
    ErrorShape(
        name="Ollama",
        prefixes=("/api",),
        render=ollama.render_error,
        statuses=ollama.STATUSES,
        schema=ollama.SCHEMA,
        unknown_model=404,  # compat: /api/chat: clients then pull the model
    ),
)


def shape_of_path(path: str) -> ErrorShape | None:
    """Return the error format of a path; None: llama-server's."""
    return next((shape for shape in _SHAPES if shape.has(path)), None)


def shape_of(scope: Scope) -> ErrorShape | None:
    """Return the error format of a request, which may also name its API in a header."""
    found = shape_of_path(scope["path"])
    if found is None and scope["path"].startswith("/v1/models"):
        names = {name for name, _ in scope["headers"]}
        found = next((shape for shape in _SHAPES if shape.header and shape.header in names), None)
    return found
