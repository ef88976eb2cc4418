"""What is told of each request that has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from corral.telemetry.record import RequestRecord

Headers = Sequence[tuple[bytes, bytes]]


class Asked(msgspec.Struct, frozen=True):
    """What a request was for. `target`: the path as it was sent; `route`: the path of its route, with names
    for parameters, empty if a file or nothing answered; `address`: of the client, empty if it has none."""

    method: str
    path: str
    route: str
    target: bytes = b""
    scheme: str = "http"
    headers: Headers = ()
    address: str = ""


class RequestObserver(Protocol):
    def on_request_end(self, asked: Asked, record: RequestRecord) -> None: ...
