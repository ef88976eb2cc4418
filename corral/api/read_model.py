"""Read the body of a request, for routes that find out themselves what body they have."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from corral.api.body import read_body, read_json
from corral.generate.caller import caller_in
from corral.generate.services import ServerServices
from corral.schema.parse import RequestT


async def read_model(
    request: Request, services: ServerServices, model: type[RequestT], default: Any = None
) -> RequestT:
    record = caller_in(request.scope).record
    body, _ = await read_body(request.headers, request.stream(), record, services, model, default)
    return body


async def read_content(request: Request, services: ServerServices) -> Any:
    """Return the body of a request that no model describes."""
    return await read_json(request.headers, request.stream(), caller_in(request.scope).record, services)
