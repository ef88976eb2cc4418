"""`/v1/responses`: parse, prepare and run as a chat, render, store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from dataclasses import replace
from typing import Annotated, Any

from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response

from corral.api import group
from corral.api.body import JsonResponse, parse_body
from corral.api.caller import caller_in
from corral.api.choice import Choice, follow
from corral.api.count_tokens import count_tokens
from corral.api.dialects.error_shape import RESPONSES_ERRORS
from corral.api.dialects.place import renaming
from corral.api.dialects.responses.agent import respond_with_tools
from corral.api.dialects.responses.background import STREAM, start_run
from corral.api.dialects.responses.compact import CompactionRenderer, ask_summary
from corral.api.dialects.responses.exchange import Exchange, open_exchange, parse_exchange
from corral.api.dialects.responses.mcp import is_mcp
from corral.api.dialects.responses.page import QUERIES, render_page
from corral.api.dialects.responses.parse import ParsedResponses
from corral.api.dialects.responses.render import ResponsesRenderer, render_frame
from corral.api.dialects.responses.run import Run
from corral.api.dialects.responses.schema import (
    COMPACTION,
    DELETED,
    INPUT_TOKENS,
    ITEMS,
    RESPONSE,
    CompactRequest,
    InputTokensRequest,
    ResponsesRequest,
)
from corral.api.dialects.responses.stored import replay
from corral.api.durable import DurableWork
from corral.api.openapi import EVENTS, answers, body_of, queries, query
from corral.api.policy import Follow, Live, ModelUse, NamedIn, Policy, Role, Unloaded, for_model, for_server
from corral.api.prepare_chat import PreparedChat, prepare_chat
from corral.api.query_number import query_number
from corral.api.render.warning import render_warnings
from corral.api.respond import check_admission, open_choices, read_body, respond
from corral.api.router import Operation, PathParameter, Router
from corral.api.sse import EventStream
from corral.api.state import state_of
from corral.core.errors import InvalidRequest
from corral.core.key_role import Permission
from corral.telemetry.record import RequestRecord


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
    openapi_extra=body_of(ResponsesRequest),
    responses=answers(RESPONSE, 404, 501, 502, 507, also=[EVENTS]),
)
async def create(request: Request) -> Response:
    """Answer a conversation, in the shape of OpenAI's Responses API."""
    body = await read_body(request, ResponsesRequest)
    if body.background and not body.store:
        raise InvalidRequest("needs 'store': true", field="background")
    exchange = await open_exchange(request, body)
    if (sessions := state_of(request).mcp) is not None and is_mcp(body.tools):
        return await respond_with_tools(request, body, exchange, sessions)
    parsed = await parse_exchange(request, body, exchange)
    with renaming(parsed.names):
        prepared = await prepare_chat(request, parsed.chat, state_of(request).prepare)
        renderer = _open_renderer(request, body, exchange, parsed, prepared)
        if body.background:
            return await _run(request, body, exchange, prepared, renderer)
        return await respond(request, prepared.completion, renderer, body.stream)


@router.post(
    "/v1/responses/input_tokens",
    "/responses/input_tokens",
    operation=Operation("countResponseTokens", "Count the tokens of a response (OpenAI)", group.RESPONSES),
    policy=replace(for_model(Permission.USE, RESPONSES_ERRORS, _MODEL), settles=True),
    openapi_extra=body_of(InputTokensRequest),
    responses=answers(INPUT_TOKENS, 404, 501, 507),
)
async def input_tokens(request: Request) -> Response:
    """Count the tokens of a conversation, in the shape of OpenAI's Responses API."""
    body = await parse_body(request, InputTokensRequest)
    parsed = await parse_exchange(request, body, await open_exchange(request, body))
    with renaming(parsed.names):
        n = await count_tokens(request, parsed.chat)
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
    openapi_extra=body_of(CompactRequest),
    responses=answers(COMPACTION, 404, 501, 507),
)
async def compact(request: Request) -> Response:
    """Replace a conversation by its user messages and a summary, in the shape of OpenAI's Responses API."""
    check_admission(request)
    state = state_of(request)
    body = ask_summary(await parse_body(request, CompactRequest), state.model.info.n_ctx)
    exchange = await open_exchange(request, body)
    parsed = await parse_exchange(request, body, exchange)
    with renaming(parsed.names):
        prepared = await prepare_chat(request, parsed.chat, state.prepare)
        renderer = _open_renderer(request, body, exchange, parsed, prepared)
        summary = CompactionRenderer(renderer, [item for _, item in exchange.items[:-1]])
        return await respond(request, prepared.completion, summary, stream=False)


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
async def retrieve(request: Request, id: _Id) -> Response:
    """A stored response, or its events."""
    archive, client = state_of(request).responses, caller_in(request.scope).client
    start = _first_event(request)
    run = archive.find_run(client, id)
    if start is None:
        return JsonResponse(run.response if run is not None else (await archive.load(client, id)).response)
    if run is not None:
        return EventStream(run.follow(start), format=STREAM)
    events = replay(await archive.load(client, id))
    return EventStream(_stream(event for i, event in enumerate(events) if i >= start), format=STREAM)


@router.post(
    "/v1/responses/{id}/cancel",
    operation=Operation("cancelResponse", "Cancel a response in the background", group.RESPONSES),
    policy=_STORED,
    responses=answers(RESPONSE, 400, 404),
)
async def cancel(request: Request, id: _Id) -> Response:
    """Stop a response that runs in the background; one that has ended stays as it is."""
    archive, client = state_of(request).responses, caller_in(request.scope).client
    if (run := archive.find_run(client, id)) is not None:
        await run.cancel()
    response = (await archive.load(client, id)).response
    if not response["background"]:
        raise InvalidRequest("only responses in the background can be cancelled", field="id")
    return JsonResponse(response)


@router.delete(
    "/v1/responses/{id:response}",
    operation=Operation("deleteResponse", "Delete a response", group.RESPONSES),
    policy=_STORED,
    responses=answers(DELETED, 404),
)
async def delete(request: Request, id: _Id) -> Response:
    """Remove a response; one that is running is stopped."""
    await state_of(request).responses.remove(caller_in(request.scope).client, id)
    return JsonResponse({"id": id, "object": "response", "deleted": True})


@router.get(
    "/v1/responses/{id}/input_items",
    operation=Operation("listInputItems", "List the items that a response answers", group.RESPONSES),
    policy=_STORED,
    openapi_extra=queries(*QUERIES),
    responses=answers(ITEMS, 400, 404),
)
async def input_items(request: Request, id: _Id) -> Response:
    """The items that a response answers."""
    archive, client = state_of(request).responses, caller_in(request.scope).client
    run = archive.find_run(client, id)
    items = run.input if run is not None else (await archive.load(client, id)).input
    return JsonResponse(render_page(items, request))


def _open_renderer(
    request: Request,
    body: ResponsesRequest,
    exchange: Exchange,
    parsed: ParsedResponses,
    prepared: PreparedChat,
) -> ResponsesRenderer:
    context = state_of(request).model.render_context
    sampling = prepared.completion.tasks[0][0].params.sampling
    frame = render_frame(exchange.id, body, context.model_name, sampling)
    return ResponsesRenderer(context, body, parsed, prepared, frame, exchange.input, exchange.keep)


async def _run(
    request: Request,
    body: ResponsesRequest,
    exchange: Exchange,
    prepared: PreparedChat,
    renderer: ResponsesRenderer,
) -> Response:
    """Start a response in the background; the request ends before it."""
    record = caller_in(request.scope).record
    detached = RequestRecord(id=record.id, client=record.client)
    work = caller_in(request.scope).work
    if work is not None:
        work.rename(exchange.id)
    choices, at_end = await open_choices(state_of(request), detached, prepared.completion, work=work)
    run = Run(renderer, _events(renderer, choices, work), at_end)
    return start_run(exchange, run, body.stream)


async def _events(
    renderer: ResponsesRenderer, choices: list[Choice], work: DurableWork | None
) -> AsyncGenerator[dict[str, Any]]:
    async for choice, result in follow(choices, work):
        for event in renderer.events(choice, result):
            yield event


def _first_event(request: Request) -> int | None:
    """Return the number of the first event to send; None: send the response instead of events."""
    if request.query_params.get("stream", "false") not in ("true", "1"):
        return None
    return query_number(request, "starting_after", -1, 0, _MAX_EVENTS) + 1


async def _stream(events: Iterable[dict[str, Any]]) -> AsyncGenerator[dict[str, Any]]:
    for event in events:
        yield event
