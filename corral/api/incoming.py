"""Read the body of a request, and make a call of it: what all routes with a body have in common."""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Any

import msgspec

from corral.api.body import Headers, read_body
from corral.api.policy import Follow, Policy, Role
from corral.core.client import Client
from corral.core.key_role import Permission
from corral.generate.call import Call
from corral.generate.caller import Caller
from corral.generate.services import Services
from corral.schema.parse import RequestT


class Incoming(msgspec.Struct, frozen=True):
    """A request whose body is still to come."""

    caller: Caller
    path: str
    headers: Headers
    parts: AsyncIterable[bytes]


async def read_call(
    incoming: Incoming, services: Services, policy: Policy, model: type[RequestT], default: Any = None
) -> Call[RequestT]:
    """Read the body, if a request that generates has room in the queue, and have it be durable if it is to
    be."""
    caller = incoming.caller
    if policy.permission is Permission.GENERATE and policy.model and policy.model.role is Role.GENERATE:
        check_admission(services, caller.client)
    body, raw = await read_body(incoming.headers, incoming.parts, caller.record, services, model, default)
    work = None
    if policy.follow is not Follow.NEVER:
        work = services.begin_work(incoming, services, body, raw)
    return Call(caller, services, body, len(raw), work)


def check_admission(services: Services, client: Client) -> None:
    """Raise if the model cannot generate, or if the queue has no room for one more task of the client."""
    services.model.require_generation()
    services.admission.check_queue(client)
