"""`/v1/conversations`: items that the server keeps, and that responses continue."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from starlette.requests import Request
from starlette.responses import Response

from corral.api import group
from corral.api.body import JsonResponse
from corral.api.openapi import answers, body_of, queries
from corral.api.policy import for_server
from corral.api.render.warning import render_warnings
from corral.api.responses.conversation import Conversation
from corral.api.responses.error import RESPONSES_ERRORS
from corral.api.responses.item import Item, normalize_items
from corral.api.responses.response_store import ResponseStore
from corral.api.responses.schema import (
    CONVERSATION,
    DELETED,
    ITEM,
    ITEMS,
    MAX_NEW_ITEMS,
    ConversationItemsRequest,
    ConversationRequest,
    ConversationUpdateRequest,
)
from corral.api.router import Operation, PathParameter, Router
from corral.api.shared.page import QUERIES, render_list, render_page
from corral.core.client import Client
from corral.core.errors import InvalidRequest
from corral.core.key_role import Permission
from corral.generate.call import Call
from corral.generate.caller import Caller, caller_in
from corral.generate.services import ServerServices
from corral.schema.parse import RequestModel

_STORED = replace(for_server(Permission.USE, RESPONSES_ERRORS), settles=True)

router = Router()

_Id = Annotated[str, PathParameter("ID of the conversation.")]
_ItemId = Annotated[str, PathParameter("ID of the item.")]


@router.post(
    "/v1/conversations",
    operation=Operation("createConversation", "Create a conversation", group.RESPONSES),
    policy=_STORED,
    body=ConversationRequest,
    default={},
    openapi_extra=body_of(ConversationRequest, required=False),
    responses=answers(CONVERSATION),
)
async def create(call: Call[ConversationRequest]) -> Response:
    """Begin a conversation."""
    store, client = _store_of(call.services, call.caller)
    body = call.body
    items = [] if body.items is None else body.items
    _check_items(items)
    conversation = Conversation(body.metadata)
    conversation.add(_new_items(items, conversation))
    store.keep_conversation(client, conversation)
    return _answer(conversation, body)


@router.get(
    "/v1/conversations/{id}",
    operation=Operation("getConversation", "Get a conversation", group.RESPONSES),
    policy=_STORED,
    responses=answers(CONVERSATION, 404),
)
async def retrieve(request: Request, services: ServerServices, id: _Id) -> Response:
    """A conversation, without its items."""
    store, client = _store_of(services, caller_in(request.scope))
    return JsonResponse((await store.load_conversation(client, id)).render())


@router.post(
    "/v1/conversations/{id}",
    operation=Operation("updateConversation", "Change a conversation", group.RESPONSES),
    policy=_STORED,
    body=ConversationUpdateRequest,
    responses=answers(CONVERSATION, 404),
)
async def update(call: Call[ConversationUpdateRequest], id: _Id) -> Response:
    """Replace the metadata of a conversation."""
    store, client = _store_of(call.services, call.caller)
    body = call.body

    def update(conversation: Conversation) -> Conversation:
        conversation.metadata = body.metadata
        return conversation

    return _answer(await store.edit_conversation(client, id, update), body)


@router.delete(
    "/v1/conversations/{id}",
    operation=Operation("deleteConversation", "Delete a conversation", group.RESPONSES),
    policy=_STORED,
    responses=answers(DELETED, 404),
)
async def delete(request: Request, services: ServerServices, id: _Id) -> Response:
    """Remove a conversation."""
    store, client = _store_of(services, caller_in(request.scope))
    await store.remove_conversation(client, id)
    return JsonResponse({"id": id, "object": "conversation.deleted", "deleted": True})


@router.get(
    "/v1/conversations/{id}/items",
    operation=Operation("listConversationItems", "List the items of a conversation", group.RESPONSES),
    policy=_STORED,
    openapi_extra=queries(*QUERIES),
    responses=answers(ITEMS, 400, 404),
)
async def list_items(request: Request, services: ServerServices, id: _Id) -> Response:
    """The items of a conversation."""
    store, client = _store_of(services, caller_in(request.scope))
    return JsonResponse(render_page((await store.load_conversation(client, id)).items, request.query_params))


@router.post(
    "/v1/conversations/{id}/items",
    operation=Operation("createConversationItems", "Add items to a conversation", group.RESPONSES),
    policy=_STORED,
    body=ConversationItemsRequest,
    responses=answers(ITEMS, 404),
)
async def create_items(call: Call[ConversationItemsRequest], id: _Id) -> Response:
    """Add items to a conversation."""
    store, client = _store_of(call.services, call.caller)
    body = call.body
    _check_items(body.items)

    def add(conversation: Conversation) -> list[Item]:
        items = _new_items(body.items, conversation)
        conversation.add_new(items)
        return items

    items = await store.edit_conversation(client, id, add)
    return JsonResponse({**render_list(items), **render_warnings(body.warnings)})


@router.get(
    "/v1/conversations/{id}/items/{item_id}",
    operation=Operation("getConversationItem", "Get an item of a conversation", group.RESPONSES),
    policy=_STORED,
    responses=answers(ITEM, 404),
)
async def retrieve_item(request: Request, services: ServerServices, id: _Id, item_id: _ItemId) -> Response:
    """An item of a conversation."""
    store, client = _store_of(services, caller_in(request.scope))
    return JsonResponse((await store.load_conversation(client, id)).find(item_id))


@router.delete(
    "/v1/conversations/{id}/items/{item_id}",
    operation=Operation("deleteConversationItem", "Delete an item", group.RESPONSES),
    policy=_STORED,
    responses=answers(CONVERSATION, 404),
)
async def delete_item(request: Request, services: ServerServices, id: _Id, item_id: _ItemId) -> Response:
    """Remove an item from a conversation."""
    store, client = _store_of(services, caller_in(request.scope))

    def remove(conversation: Conversation) -> Conversation:
        conversation.items.remove(conversation.find(item_id))
        return conversation

    return JsonResponse((await store.edit_conversation(client, id, remove)).render())


def _store_of(services: ServerServices, caller: Caller) -> tuple[ResponseStore, Client]:
    return services.responses, caller.client


def _check_items(given: object) -> None:
    if not isinstance(given, list) or len(given) > MAX_NEW_ITEMS:
        raise InvalidRequest(f"must be a list of at most {MAX_NEW_ITEMS} items", field="items")


def _new_items(given: list[Item], conversation: Conversation) -> list[Item]:
    items = normalize_items(given, "items", conversation.id, conversation.n_added)
    for i, item in enumerate(items):
        if item["type"] == "item_reference":
            raise InvalidRequest("a conversation has items, not references", field=f"items[{i}]")
    return items


def _answer(conversation: Conversation, body: RequestModel) -> Response:
    return JsonResponse({**conversation.render(), **render_warnings(body.warnings)})
