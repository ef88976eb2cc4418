"""What is told of each HTTP request that has ended."""

from __future__ import annotations

from typing import Protocol

from starlette.types import Scope

from corral.telemetry.record import RequestRecord


class RequestObserver(Protocol):
    def on_request_end(self, scope: Scope, record: RequestRecord) -> None: ...
