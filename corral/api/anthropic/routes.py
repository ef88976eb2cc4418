"""`POST /v1/messages` and related routes: parse, prepare and run as a chat, render."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from corral.api import group
from corral.api.anthropic.document import read_pdfs
from corral.api.anthropic.error import MESSAGES_ERRORS, VERSION_HEADER
from corral.api.anthropic.model_list import render_model
from corral.api.anthropic.parse import ParsedMessages, parse_conversation
from corral.api.anthropic.render import MessagesRenderer
from corral.api.anthropic.reply import render_page, with_id
from corral.api.anthropic.schema import (
    INPUT_TOKENS,
    MESSAGE,
    CountTokensRequest,
    MessagesFields,
    MessagesRequest,
)
from corral.api.body import JsonResponse
from corral.api.count_tokens import count_tokens
from corral.api.dialect import Dialect, Ready, run_dialect
from corral.api.openapi import EVENTS, answers
from corral.api.policy import Follow, ModelUse, NamedIn, Policy, Role, Unloaded, for_model, for_server
from corral.api.render.warning import render_warnings
from corral.api.router import Operation, PathParameter, Router
from corral.core.errors import NotFound, UnknownModel
from corral.core.key_role import Permission
from corral.generate.call import Call
from corral.generate.caller import caller_in
from corral.generate.disconnect import run_for_client
from corral.generate.error_field import renaming
from corral.generate.model_directory import ListedModel
from corral.generate.prepare_chat import prepare_chat
from corral.generate.services import ServerServices

_MODEL = ModelUse(Role.GENERATE, NamedIn.BODY, Unloaded.LOAD, wakes=True, progress=None)


def _is_versioned(scope: Scope) -> bool:
    """Whether a request is for this API, which shares paths with another one."""
    return any(name == VERSION_HEADER for name, _ in scope.get("headers", ()))


FieldsT = TypeVar("FieldsT", bound=MessagesFields)

router = Router()


@router.post(
    "/v1/messages",
    operation=Operation("createMessage", "Create a message (Anthropic)", group.MESSAGES),
    policy=Policy(
        permission=Permission.GENERATE,
        errors=MESSAGES_ERRORS,
        model=_MODEL,
        follow=Follow.EVENTS,
        live=None,
        settles=False,
        is_batched=False,
    ),
    body=MessagesRequest,
    responses=answers(MESSAGE, 501, 507, also=[EVENTS]),
)
async def messages(call: Call[MessagesRequest]) -> Response:
    """Answer a conversation, in Anthropic's shape."""
    return with_id(call.record, await run_dialect(call, _MESSAGES))


@router.post(
    "/v1/messages/count_tokens",
    operation=Operation("countMessageTokens", "Count the tokens of a message (Anthropic)", group.MESSAGES),
    policy=for_model(Permission.USE, MESSAGES_ERRORS, _MODEL),
    body=CountTokensRequest,
    responses=answers(INPUT_TOKENS, 501, 507),
)
async def count(call: Call[CountTokensRequest]) -> Response:
    """Count the tokens of a conversation, in Anthropic's shape."""
    parsed = await _parse(call)
    with renaming(parsed.names):
        n = await count_tokens(call, parsed.chat)
    return with_id(call.record, JsonResponse({"input_tokens": n, **render_warnings(parsed.chat.warnings)}))


@router.get(
    "/v1/models",
    operation=None,
    policy=for_server(Permission.PUBLIC, MESSAGES_ERRORS),
    fits=_is_versioned,
)
async def models(request: Request, services: ServerServices) -> Response:
    """All models. compat: /v1/models: only a list of one has an end that clients ask for."""
    caller, query = caller_in(request.scope), request.query_params
    rows = [_render_model(each, services) for each in services.models.visible(caller)]
    edges = {query.get("after_id"), query.get("before_id")}
    if not services.models.are_named:
        rows = [row for row in rows if row["id"] not in edges]
    return with_id(caller.record, JsonResponse(render_page(rows)))


@router.get(
    "/v1/models/{name:path}",
    operation=None,
    policy=for_server(Permission.ANY, MESSAGES_ERRORS),
    fits=_is_versioned,
)
async def model(
    request: Request, services: ServerServices, name: Annotated[str, PathParameter("The model's name.")]
) -> Response:
    """One model by its name."""
    caller = caller_in(request.scope)
    try:
        found = services.models.find(caller, name)
    except UnknownModel as error:
        raise NotFound(error.message) from None
    return with_id(caller.record, JsonResponse(_render_model(found, services)))


async def _parse(call: Call[FieldsT]) -> ParsedMessages:
    reading = read_pdfs(call.body.messages, call.services.media_source)
    texts = await run_for_client(reading, call.caller.disconnect)
    return await call.services.pools.run_prompt(call.client, parse_conversation, call.body, texts)


async def _prepare(call: Call[MessagesRequest], parsed: ParsedMessages) -> Ready:
    prepared = await prepare_chat(call, parsed.chat)
    context = call.services.model.render_context
    return prepared.completion, MessagesRenderer(context, call.body, parsed, prepared)


_MESSAGES = Dialect(_parse, _prepare)


def _render_model(model: ListedModel, services: ServerServices) -> dict[str, Any]:
    return render_model(model.name, model.info, services.started_at, model.max_predict)
