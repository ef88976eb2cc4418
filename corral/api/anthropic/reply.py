"""What all answers of this API have in common: lists, and the id of the request."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from corral.api.anthropic.error import ID_HEADER
from corral.telemetry.record import RequestRecord


def render_page(rows: list[dict[str, Any]], has_more: bool = False) -> dict[str, Any]:
    first, last = (rows[0]["id"], rows[-1]["id"]) if rows else (None, None)
    return {"data": rows, "has_more": has_more, "first_id": first, "last_id": last}


def with_id(record: RequestRecord, response: Response) -> Response:
    response.headers[ID_HEADER.decode()] = record.id
    return response
