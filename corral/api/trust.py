"""Whether a request has a valid key: set by access control, read by routes that are public. Requests of the
server itself need none."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import Scope

_KEY = "corral.is_anonymous"
_INTERNAL = "corral.is_internal"


def mark_anonymous(scope: Scope) -> None:
    """Record that the request has no key although keys are required."""
    scope[_KEY] = True


def mark_internal(scope: Scope) -> None:
    """Record that the server itself makes the request, for the client in its record."""
    scope[_INTERNAL] = True


def is_internal(scope: Scope) -> bool:
    return bool(scope.get(_INTERNAL))


def is_anonymous(request: Request) -> bool:
    """Whether paths and prompts are withheld from the client."""
    return is_anonymous_in(request.scope)


def is_anonymous_in(scope: Scope) -> bool:
    return bool(scope.get(_KEY))
