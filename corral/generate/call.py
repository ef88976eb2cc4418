"""A request whose body was read: what a route with a body gets, from HTTP or from the server itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from corral.generate.caller import Caller

if TYPE_CHECKING:
    from corral.core.client import Client
    from corral.features.durable.work import DurableWork
    from corral.generate.services import Services
    from corral.telemetry.record import RequestRecord

BodyT = TypeVar("BodyT")


class Call(msgspec.Struct, Generic[BodyT], frozen=True):
    """`n_bytes`: of the body. `work`: of a durable request."""

    caller: Caller
    services: Services
    body: BodyT
    n_bytes: int
    work: DurableWork | None = None

    @property
    def record(self) -> RequestRecord:
        return self.caller.record

    @property
    def client(self) -> Client:
        return self.caller.client


AnyCall = Call[Any]
