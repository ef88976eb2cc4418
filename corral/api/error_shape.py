"""The error format of an API: llama-server's, which most routes have, or its own. Uses no framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

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
