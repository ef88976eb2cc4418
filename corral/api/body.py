"""Request bodies and answers as JSON, whatever content type the client declares."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import Request, Response

from corral.core.errors import InvalidRequest, TooLarge
from corral.text.json_depth import JsonGuard


class JsonResponse(Response):
    media_type = "application/json; charset=utf-8"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


async def read_json(request: Request, max_bytes: int, default: Any = None) -> Any:
    """The body as JSON; over a limit it is refused while it is still coming in. An empty one is the
    default, if there is any."""
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
