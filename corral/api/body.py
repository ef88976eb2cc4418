"""Request bodies and answers as JSON, whatever content type the client declares."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import Request, Response

from corral.api.schema.parse import RequestT, parse_request
from corral.api.state import state_of
from corral.core.errors import InvalidRequest, TooLarge
from corral.text.json_depth import JsonGuard


class JsonResponse(Response):
    media_type = "application/json; charset=utf-8"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


async def parse_body(request: Request, model: type[RequestT], default: Any = None) -> RequestT:
    return parse_request(model, await read_json(request, default))


async def read_json(request: Request, default: Any = None) -> Any:
    """The body as JSON; over `--max-body-mb` it is refused while it is still coming in. An empty one is the
    default, if there is any."""
    max_bytes = state_of(request).settings.server.max_body_mib << 20
    body, guard = bytearray(), JsonGuard()
    async for part in request.stream():
        body += part
        if len(body) > max_bytes:
            raise TooLarge(f"the body is larger than {max_bytes >> 20} MiB (--max-body-mb)")
        guard.feed(part)
    guard.finish()
    if default is not None and not body:
        return default
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
