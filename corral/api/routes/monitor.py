"""`GET /monitor/events`: a stream of what the server does; `corral/webui/monitor.html` shows it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from corral.api.openapi import EVENTS, answers, queries, query
from corral.api.router import Router
from corral.api.sse import EventStream
from corral.core.client import Client
from corral.core.errors import Forbidden, InvalidRequest
from corral.telemetry.live import Monitor
from corral.telemetry.scope import record_of

router = Router()

_MAX_EVENTS = 1_000_000
_YES, _NO = ("1", "true"), ("", "0", "false")
_PROMPTS = query("prompts", "Show the beginning of your own key's prompts.", type="boolean")
LIMIT = query(
    "limit", "End the stream after this number of events.", type="integer", minimum=1, maximum=_MAX_EVENTS
)


@router.get(
    "/monitor/events", openapi_extra=queries(_PROMPTS, LIMIT), responses=answers(None, 400, also=[EVENTS])
)
async def events(request: Request) -> Response:
    """What slots, queue, caches and engine do: a minute of it at once, then twice a second what is new."""
    monitor: Monitor = request.app.state.monitor
    reader, limit = _reader(request), limit_of(request)
    monitor.check_capacity()
    return EventStream(monitor.watch(reader, limit))


def _reader(request: Request) -> Client | None:
    """Return the client whose prompts are shown, if it asks for them."""
    asked = request.query_params.get("prompts", "")
    if asked in _NO:
        return None
    if asked not in _YES:
        raise InvalidRequest("must be true or false", field="prompts")
    if not request.app.state.keys:
        raise Forbidden(
            "Prompts are visible only to the API key that sent them. Start the server with `--api-key`"
        )
    return record_of(request).client


def limit_of(request: Request) -> int:
    """Return the number of events to send; 0: no limit."""
    text = request.query_params.get("limit", "")
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= _MAX_EVENTS):
        raise InvalidRequest(f"must be a number from 1 to {_MAX_EVENTS}", field="limit")
    return int(text)
