"""The record of a request, kept in its ASGI scope."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.types import Scope

from corral.telemetry.record import RequestRecord

if TYPE_CHECKING:
    from fastapi import Request

_KEY = "corral.record"


def record_in(scope: Scope) -> RequestRecord:
    record: RequestRecord = scope.setdefault(_KEY, RequestRecord())
    return record


def record_of(request: Request) -> RequestRecord:
    return record_in(request.scope)
