"""The record of a request, kept in its ASGI scope, and at hand for all that is done for it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from starlette.types import Scope

from corral.telemetry.record import RequestRecord

if TYPE_CHECKING:
    from starlette.requests import Request

_KEY = "corral.record"
_current: ContextVar[RequestRecord] = ContextVar(_KEY)


def record_in(scope: Scope) -> RequestRecord:
    record: RequestRecord = scope.setdefault(_KEY, RequestRecord())
    return record


def record_of(request: Request) -> RequestRecord:
    return record_in(request.scope)


def scope_of(record: RequestRecord) -> Scope:
    """Return the part of a scope that has this record."""
    return {_KEY: record}


def set_current(record: RequestRecord) -> None:
    """What is done from now on, in this task and those that it starts, is done for this request."""
    _current.set(record)


def current_record() -> RequestRecord:
    """The record of the request that this is done for; of the server's own work, an empty one."""
    return _current.get(None) or RequestRecord()
