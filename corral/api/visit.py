"""The visit that a request is: begun at the door, read by routes and logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.types import Scope

from corral.core.visit import Visit

if TYPE_CHECKING:
    from fastapi import Request

_KEY = "corral.visit"


def visit_in(scope: Scope) -> Visit:
    visit: Visit = scope.setdefault(_KEY, Visit())
    return visit


def visit_of(request: Request) -> Visit:
    return visit_in(request.scope)
