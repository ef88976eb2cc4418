"""`/v1/responses`: create, read, cancel and delete responses, and what belongs to them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Annotated, Any

from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response

from corral.api import group
from corral.api.body import JsonResponse
from corral.api.count_tokens import count_tokens
from corral.api.followed_stream import FollowedStream
from corral.api.openapi import EVENTS, answers, queries, query
from corral.api.policy import Follow, Live, ModelUse, NamedIn, Policy, Role, Unloaded, for_model, for_server
from corral.api.query_number import query_number
from corral.api.render.warning import render_warnings
from corral.api.responses.compact import ask_summary, render_compaction
from corral.api.responses.context import open_context, parse_in_context
from corral.api.responses.error import RESPONSES_ERRORS
from corral.api.responses.render import ResponsesRenderer
from corral.api.responses.runner import open_runner
from corral.api.responses.schema import (
    COMPACTION,
    DELETED,
    INPUT_TOKENS,
    ITEMS,
    RESPONSE,
    CompactRequest,
    InputTokensRequest,
    ResponsesRequest,
)
from corral.api.responses.stored import replay
from corral.api.router import Operation, PathParameter, Router
from corral.api.shared.page import QUERIES, render_page
from corral.api.sse import EventStream
from corral.core.errors import InvalidRequest
from corral.core.key_role import Permission
from corral.generate.call import Call
from corral.generate.caller import caller_in
from corral.generate.error_field import renaming
from corral.generate.services import ServerServices


class _ResponseId(StringConvertor):
    """Matches the id in a path, but not `input_tokens` and `compact`, which are routes of their own."""

    regex = "(?!(?:input_tokens|compact)$)[^/]+"


register_url_convertor("response", _ResponseId())
_MODEL = ModelUse(Role.GENERATE, NamedIn.BODY, Unloaded.LOAD, wakes=True, progress=None)
_STORED = replace(for_server(Permission.USE, RESPONSES_ERRORS), live=Live.RESPONSE, settles=True)

router = Router()

_MAX_EVENTS = (1 << 31) - 1
_Id = Annotated[str, PathParameter("ID of the response.")]


@router.post(
    "/v1/responses",
    "/responses",
    operation=Operation("createResponse", "Create a response (OpenAI)", group.RESPONSES),
    policy=Policy(
        permission=Permission.GENERATE,
        errors=RESPONSES_ERRORS,
        model=_MODEL,
        follow=Follow.EVENTS,
        live=None,
        settles=True,
        is_batched=True,
    ),
    body=ResponsesRequest,
    responses=answers(RESPONSE, 404, 501, 502, 507, also=[EVENTS]),
)
async def create(call: Call[ResponsesRequest]) -> Response:
    """Answer a conversation, in the shape of OpenAI's Responses API."""
    body = call.body
    if body.background and not body.store:
        raise InvalidRequest("needs 'store': true", field="background")
    runner = await open_runner(call, await open_context(call, body))
    return await (runner.respond_in_background() if body.background else runner.respond())


@router.post(
    "/v1/responses/input_tokens",
    "/responses/input_tokens",
    operation=Operation("countResponseTokens", "Count the tokens of a response (OpenAI)", group.RESPONSES),
    policy=replace(for_model(Permission.USE, RESPONSES_ERRORS, _MODEL), settles=True),
    body=InputTokensRequest,
    responses=answers(INPUT_TOKENS, 404, 501, 507),
)
async def input_tokens(call: Call[InputTokensRequest]) -> Response:
    """Count the tokens of a conversation, in the shape of OpenAI's Responses API."""
    parsed = await parse_in_context(call, call.body, await open_context(call, call.body))
    with renaming(parsed.names):
        n = await count_tokens(call, parsed.chat)
    counted = {"object": "response.input_tokens", "input_tokens": n}
    return JsonResponse({**counted, **render_warnings(parsed.chat.warnings)})


@router.post(
    "/v1/responses/compact",
    operation=Operation("compactResponse", "Replace a conversation by a summary (OpenAI)", group.RESPONSES),
    policy=Policy(
        permission=Permission.GENERATE,
        errors=RESPONSES_ERRORS,
        model=_MODEL,
        follow=Follow.NEVER,
        live=None,
        settles=True,
        is_batched=False,
    ),
    body=CompactRequest,
    responses=answers(COMPACTION, 404, 501, 507),
)
async def compact(call: Call[CompactRequest]) -> Response:
    """Replace a conversation by its user messages and a summary, in the shape of OpenAI's Responses API."""
    body = ask_summary(call.body, call.services.model.info.n_ctx)
    asked = Call(call.caller, call.services, body, call.n_bytes)
    context = await open_context(asked, asked.body)
    items = [item for _, item in context.items[:-1]]
    runner = await open_runner(asked, context)
    return await runner.respond(lambda response: render_compaction(response, items))


@router.get(
    "/v1/responses/{id:response}",
    operation=Operation("getResponse", "Get a response, or its events", group.RESPONSES),
    policy=_STORED,
    openapi_extra=queries(
        query("stream", "Send its events, also those that are still to come.", type="boolean"),
        query("starting_after", "Leave out the events up to this number.", type="integer", minimum=0),
    ),
    responses=answers(RESPONSE, 400, 404, also=[EVENTS]),
)
async def retrieve(request: Request, services: ServerServices, id: _Id) -> Response:
    """A stored response, or its events."""
    store, client = services.responses, caller_in(request.scope).client
    start = _first_event(request.query_params)
    running = store.find_running(client, id)
    if start is None:
        found = running if running is not None else await store.load(client, id)
        return JsonResponse(found.response)
    if running is not None:
        return FollowedStream(running.log, running.log.follow_events(running.renderer.n_before(start)))
    events = islice(replay(await store.load(client, id)), start, None)
    return EventStream(_stream(events), format=ResponsesRenderer.stream_format)


@router.post(
    "/v1/responses/{id}/cancel",
    operation=Operation("cancelResponse", "Cancel a response in the background", group.RESPONSES),
    policy=_STORED,
    responses=answers(RESPONSE, 400, 404),
)
async def cancel(request: Request, services: ServerServices, id: _Id) -> Response:
    """Stop a response that runs in the background; one that has ended stays as it is."""
    store, client = services.responses, caller_in(request.scope).client
    if (running := store.find_running(client, id)) is not None:
        await running.log.stop()
    response = (await store.load(client, id)).response
    if not response["background"]:
        raise InvalidRequest("only responses in the background can be cancelled", field="id")
    return JsonResponse(response)


@router.delete(
    "/v1/responses/{id:response}",
    operation=Operation("deleteResponse", "Delete a response", group.RESPONSES),
    policy=_STORED,
    responses=answers(DELETED, 404),
)
async def delete(request: Request, services: ServerServices, id: _Id) -> Response:
    """Remove a response; one that is running is stopped."""
    await services.responses.remove(caller_in(request.scope).client, id)
    return JsonResponse({"id": id, "object": "response", "deleted": True})


@router.get(
    "/v1/responses/{id}/input_items",
    operation=Operation("listInputItems", "List the items that a response answers", group.RESPONSES),
    policy=_STORED,
    openapi_extra=queries(*QUERIES),
    responses=answers(ITEMS, 400, 404),
)
async def input_items(request: Request, services: ServerServices, id: _Id) -> Response:
    """The items that a response answers."""
    store, client = services.responses, caller_in(request.scope).client
    running = store.find_running(client, id)
    stored = running.renderer.stored if running is not None else await store.load(client, id)
    return JsonResponse(render_page(stored.input, request.query_params))


def _first_event(params: Mapping[str, str]) -> int | None:
    """Return the number of the first event to send; None: send the response instead of events."""
    if params.get("stream", "false") not in ("true", "1"):
        return None
    return query_number(params, "starting_after", -1, 0, _MAX_EVENTS) + 1


async def _stream(events: Iterable[dict[str, Any]]) -> AsyncGenerator[dict[str, Any]]:
    for event in events:
        yield event
