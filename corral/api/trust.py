"""Whether a client has shown a key: set by access control, read by routes that answer without one."""

from __future__ import annotations

from fastapi import Request
from starlette.types import Scope

_KEY = "corral.is_anonymous"


def mark_anonymous(scope: Scope) -> None:
    """The request has shown no key, where one is needed."""
    scope[_KEY] = True


def is_anonymous(request: Request) -> bool:
    """Whether paths and prompts are withheld from the client."""
    return bool(request.scope.get(_KEY))
