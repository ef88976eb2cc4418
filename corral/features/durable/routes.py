"""`/v1/stream`: follow, find and stop streams that were begun with `X-Conversation-Id`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import orjson
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from corral.api import group
from corral.api.answer_log import AnswerLog
from corral.api.body import JsonResponse
from corral.api.error_shape import LLAMA_ERRORS
from corral.api.followed_stream import resume
from corral.api.front_id import PASSED
from corral.api.openapi import EVENTS, answers, body_of, list_of, queries, query, shape
from corral.api.policy import Live, for_server
from corral.api.read_model import read_model
from corral.api.router import Operation, Router
from corral.core.errors import InvalidRequest
from corral.core.key_role import Permission
from corral.generate.caller import caller_in
from corral.generate.disconnect import run_for_client
from corral.generate.services import ServerServices
from corral.schema.parse import RequestModel

router = Router()

_MAX_IDS = 1024
_ID = query("conv_id", "ID of the conversation, as in the header `X-Conversation-Id`.", True, type="string")
_FROM = query("from", "Offset of the first byte to send.", type="integer", minimum=0, default=0)
_IDS = query(
    "ids",
    "Give every event the offset after it as its id, so that a client can continue with `Last-Event-ID`.",
    type="boolean",
)
_STREAM = shape(
    conversation_id="string",
    is_done="boolean",
    total_bytes="integer",
    started_at="integer",
    completed_at="integer",
)


class StreamLookupRequest(RequestModel):
    conversation_ids: list[Annotated[str, Field(max_length=512)]] = Field(
        default_factory=list, max_length=_MAX_IDS, description="The conversations to look for."
    )


@router.get(
    "/v1/stream",
    operation=Operation("followStream", "Follow a stream from an offset", group.STREAMS),
    policy=replace(for_server(Permission.USE, LLAMA_ERRORS), live=Live.STREAM),
    openapi_extra=queries(_ID, _FROM, _IDS),
    responses=answers(None, 400, 404, 503, also=[EVENTS]),
)
async def follow(request: Request, services: ServerServices) -> Response:
    """The stream of a conversation from an offset on, or after `Last-Event-ID`, also what is to come."""
    log = services.streams.find(caller_in(request.scope).client.id, _id(request))
    last_id = request.headers.get("last-event-id")
    has_ids = last_id is not None or request.query_params.get("ids") in ("true", "1")
    place = last_id or request.query_params.get("from") or "0"
    return await run_for_client(resume(log, place, has_ids), request.receive)


@router.post(
    "/v1/streams/lookup",
    operation=Operation("lookupStreams", "Find streams by their conversations", group.STREAMS),
    policy=for_server(Permission.USE, LLAMA_ERRORS),
    openapi_extra=body_of(StreamLookupRequest),
    responses=answers(list_of(_STREAM)),
)
async def lookup(request: Request, services: ServerServices) -> Response:
    """The streams of some conversations, as far as they are known."""
    body = await read_model(request, services, StreamLookupRequest)
    streams, owner = services.streams, caller_in(request.scope).client.id
    found = [log for id in dict.fromkeys(body.conversation_ids) for log in streams.lookup(owner, id)]
    rendered = [_render(log) for log in found]
    return JsonResponse([*rendered, *await _find_elsewhere(request, services, body)])


@router.delete(
    "/v1/stream",
    operation=Operation("stopStream", "Stop a stream", group.STREAMS),
    policy=replace(for_server(Permission.USE, LLAMA_ERRORS), live=Live.STREAM),
    openapi_extra=queries(_ID),
    responses={204: {"description": "Success."}, 400: {"description": "bad request"}},
)
async def stop(request: Request, services: ServerServices) -> Response:
    """Stop the stream of a conversation, and forget it."""
    client, id = caller_in(request.scope).client, _id(request)
    await services.streams.remove(client.id, id)
    if services.journal is not None:
        services.journal.post(services.journal.drop, client, id)
    return Response(status_code=204)


async def _find_elsewhere(
    request: Request, services: ServerServices, body: StreamLookupRequest
) -> list[dict[str, Any]]:
    """Return the streams that other servers with the same storage have."""
    sharing = services.sharing
    if sharing is None or PASSED in request.headers:
        return []
    asked = orjson.dumps({"conversation_ids": body.conversation_ids})
    told = await sharing.others.tell_all(request.scope, "POST", request.scope["path"], asked)
    return [each for answer in told if answer.status_code == 200 for each in answer.json()]


def _id(request: Request) -> str:
    id = request.query_params.get("conv_id", "")
    if not id:
        raise InvalidRequest("must be the id of a conversation", field="conv_id")
    return id


def _render(log: AnswerLog) -> dict[str, Any]:
    return {
        "conversation_id": log.id,
        "is_done": bool(log.ended_at),
        "total_bytes": log.n_bytes,
        "started_at": log.started_at,
        "completed_at": log.ended_at,
    }
