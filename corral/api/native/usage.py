"""`GET /v1/usage`: what the key has used; with a key of an administrator, what all have."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from corral.api import group
from corral.api.body import JsonResponse
from corral.api.error_shape import LLAMA_ERRORS
from corral.api.openapi import answers, list_of, queries, query, shape
from corral.api.policy import for_server
from corral.api.query_number import query_number
from corral.api.router import Operation, Router
from corral.core.client import Client
from corral.core.key_role import Permission
from corral.generate.caller import caller_in
from corral.generate.services import ServerServices
from corral.telemetry.ledger import DAY_S, DayUsage

router = Router()

_DEFAULT_DAYS, _MAX_DAYS = 30, 3660
_ENTRY = shape(
    date="string",
    key="string",
    requests="integer",
    refused="integer",
    input_tokens="integer",
    cached_tokens="integer",
    output_tokens="integer",
    seconds="number",
)
_USAGE = shape(object="string", data=list_of(_ENTRY), limits="object")
_DAYS = query(
    "days", "How many days to list.", type="integer", minimum=1, maximum=_MAX_DAYS, default=_DEFAULT_DAYS
)


@router.get(
    "/v1/usage",
    operation=Operation("getUsage", "Get the usage of the key by day", group.SERVER),
    policy=for_server(Permission.ANY, LLAMA_ERRORS),
    openapi_extra=queries(_DAYS),
    responses=answers(_USAGE, 400),
)
async def usage(request: Request, services: ServerServices) -> Response:
    """Requests, tokens and seconds of the key by day, newest first."""
    client, ledger = caller_in(request.scope).client, services.ledger
    days = query_number(request.query_params, "days", _DEFAULT_DAYS, 1, _MAX_DAYS)
    first_day = int(time.time()) // DAY_S - days + 1
    await ledger.refresh(first_day)
    found = ledger.entries(first_day)
    own = {place: entry for place, entry in found.items() if client.is_admin or place[1] == client.id}
    data = [_render(day, entry) for (day, _), entry in sorted(own.items(), reverse=True)]
    return JsonResponse({"object": "list", "data": data, "limits": _limits(client)})


def _render(day: int, entry: DayUsage) -> dict[str, Any]:
    return {
        "date": datetime.fromtimestamp(day * DAY_S, timezone.utc).date().isoformat(),
        "key": entry.name,
        "requests": entry.requests,
        "refused": entry.refused,
        "input_tokens": entry.input,
        "cached_tokens": entry.cached,
        "output_tokens": entry.output,
        "seconds": round(entry.seconds, 3),
    }


def _limits(client: Client) -> dict[str, int]:
    limits = client.limits
    named = {name: getattr(limits, name) for name in limits.__slots__}
    return {name: value for name, value in named.items() if value}
