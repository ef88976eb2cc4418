"""Whether a client may see everything: set at the door, asked by the routes that answer strangers too."""

from __future__ import annotations

from fastapi import Request
from starlette.types import Scope

_KEY = "corral.is_anonymous"


def mark_anonymous(scope: Scope) -> None:
    """The request has shown no key, where one is needed."""
    scope[_KEY] = True


def is_anonymous(request: Request) -> bool:
    """To whom neither paths nor prompts are told."""
    return bool(request.scope.get(_KEY))
