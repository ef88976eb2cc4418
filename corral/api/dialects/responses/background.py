"""Start a response in the background: clients find it by its id from then on."""

from __future__ import annotations

from functools import partial

from starlette.responses import Response

from corral.api.body import JsonResponse
from corral.api.dialects.named_event import named_events
from corral.api.dialects.responses.error import render_event
from corral.api.dialects.responses.exchange import Exchange
from corral.api.dialects.responses.run import Run
from corral.api.sse import EventStream

STREAM = named_events(partial(render_event, sequence_number=0))


def start_run(exchange: Exchange, run: Run, is_stream: bool) -> Response:
    """Return the response as it is, or its events."""
    exchange.archive.add_run(exchange.client, exchange.id, run)
    exchange.archive.keep(exchange.client, run.stored)
    return EventStream(run.follow(), format=STREAM) if is_stream else JsonResponse(run.response)
