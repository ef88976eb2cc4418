"""Who asks: a value that is made once at the edge, and kept in the ASGI scope under the one key of our own.

A struct, which takes less time to make than a frozen dataclass: every request has one. Uses no framework:
some errors are needed before one is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from starlette.types import Receive, Scope

from corral.core.client import Client
from corral.generate.disconnect import receive_nothing
from corral.telemetry.record import RequestRecord

if TYPE_CHECKING:
    from corral.api.answer_log import AnswerLog
    from corral.features.durable.work import DurableWork

_KEY = "corral.caller"


class Caller(msgspec.Struct, frozen=True):
    """`is_anonymous`: without a key although keys are required, so that paths and prompts are withheld.
    `log`: takes the answer. `work`: what an earlier server has done of a durable request.
    `disconnect`: what it returns says that the client has left."""

    record: RequestRecord
    disconnect: Receive = receive_nothing
    is_anonymous: bool = False
    log: AnswerLog | None = None
    work: DurableWork | None = None

    @property
    def client(self) -> Client:
        return self.record.client

    def detached(self) -> Caller:
        """Return a caller for work that goes on after the request, whose record has ended then."""
        return Caller(RequestRecord(id=self.record.id, client=self.client))


def caller_in(scope: Scope) -> Caller:
    """Return who asks; the first who wants to know is the edge."""
    caller: Caller | None = scope.get(_KEY)
    if caller is None:
        caller = scope[_KEY] = Caller(RequestRecord())
    return caller


def change_caller(scope: Scope, **changes: Any) -> None:
    """Have all that follows see a caller with these fields."""
    scope[_KEY] = msgspec.structs.replace(caller_in(scope), **changes)
