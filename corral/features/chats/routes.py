"""`/chats`: conversations of the page, kept by the server for the key that saves them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import xxhash
from starlette.requests import Request
from starlette.responses import Response

from corral.api import group
from corral.api.answer import CHAT_REMOVED, CHAT_SAVED, CHATS, SAVED_CHAT
from corral.api.body import JsonResponse
from corral.api.error_shape import LLAMA_ERRORS
from corral.api.openapi import answers, body_like, queries, query
from corral.api.policy import for_server
from corral.api.read_model import read_content
from corral.api.router import Operation, PathParameter, Router
from corral.api.user_content import USER_CONTENT
from corral.core.errors import InvalidRequest, NotSupported
from corral.core.key_role import Permission
from corral.generate.caller import caller_in
from corral.generate.disconnect import run_for_client
from corral.generate.services import ServerServices
from corral.storage.chat_folder import Precondition, check_id
from corral.storage.chat_store import ChatStore
from corral.storage.saved_chat import CHAT_ID, MAX_SEARCH_CHARS

_POLICY = for_server(Permission.USE, LLAMA_ERRORS)

router = Router()

_ID: Any = {"type": "string", "pattern": f"^{CHAT_ID}$"}
_Id = Annotated[str, PathParameter("ID of the chat.", _ID)]
_SEARCH = query(
    "search",
    "List only chats that contain this text, ignoring case.",
    type="string",
    maxLength=MAX_SEARCH_CHARS,
)
_KEPT_BY_CLIENTS = {"cache-control": "private, no-cache"}  # they ask each time whether it has changed
_ANY = "*"


@router.get(
    "/chats",
    operation=Operation("listChats", "List the saved chats", group.CHATS),
    policy=_POLICY,
    openapi_extra=queries(_SEARCH),
    responses=answers(CHATS, 400, 501),
)
async def chats(request: Request, services: ServerServices) -> Response:
    """All chats, newest first, without their messages."""
    store, client = _store(services), caller_in(request.scope).client
    text = request.query_params.get("search", "")
    if len(text) > MAX_SEARCH_CHARS:
        raise InvalidRequest(f"may have at most {MAX_SEARCH_CHARS} characters", field="search")
    work = store.search(client, text) if text else store.list(client)
    body = msgspec.json.encode(await run_for_client(work, request.receive))
    tag = f'"{xxhash.xxh3_128_hexdigest(body)}"'
    headers = {**_KEPT_BY_CLIENTS, "etag": tag}
    if tag in _tags(request, "if-none-match"):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=JsonResponse.media_type, headers=headers)


@router.get(
    "/chats/{id}",
    operation=Operation("getChat", "Get a saved chat", group.CHATS),
    policy=_POLICY,
    responses=answers(SAVED_CHAT, 400, 404, 501),
)
async def load(request: Request, services: ServerServices, id: _Id) -> Response:
    """A chat."""
    data = await _store(services).load(caller_in(request.scope).client, check_id(id))
    headers = {**USER_CONTENT, "cache-control": "no-store"}
    return Response(data, media_type=JsonResponse.media_type, headers=headers)


@router.put(
    "/chats/{id}",
    operation=Operation("saveChat", "Save a chat", group.CHATS),
    policy=_POLICY,
    openapi_extra=body_like(SAVED_CHAT),
    responses=answers(CHAT_SAVED, 409, 501, 507),
)
async def save(request: Request, services: ServerServices, id: _Id) -> Response:
    """Save a whole chat; with `If-Match: REVISION` only if no other client has saved it since."""
    store, chat_id, condition = _store(services), check_id(id), _condition(request)
    data = await read_content(request, services)
    info = await store.save(caller_in(request.scope).client, chat_id, data, condition)
    return JsonResponse({"id": info.id, "updatedAt": info.updated_at, "revision": info.revision})


@router.delete(
    "/chats/{id}",
    operation=Operation("deleteChat", "Delete a saved chat", group.CHATS),
    policy=_POLICY,
    responses=answers(CHAT_REMOVED, 400, 404, 501),
)
async def remove(request: Request, services: ServerServices, id: _Id) -> Response:
    """Remove a chat."""
    await _store(services).remove(caller_in(request.scope).client, check_id(id))
    return JsonResponse({"id": id, "success": True})


def _store(services: ServerServices) -> ChatStore:
    store = services.storage.chats
    if store is None:
        raise NotSupported("This server does not store chats. Start it with `--chats`")
    return store


def _condition(request: Request) -> Precondition:
    wanted, unwanted = _tags(request, "if-match"), _tags(request, "if-none-match")
    if len(wanted) > 1 or unwanted not in ([], [_ANY]):
        raise InvalidRequest("If-Match must be one revision, If-None-Match must be *")
    if wanted == [_ANY]:
        return Precondition(is_known=True, is_new=bool(unwanted))
    return Precondition(wanted[0].strip('"') if wanted else None, is_new=bool(unwanted))


def _tags(request: Request, header: str) -> list[str]:
    """Return the tags of the header, weak ones included: proxies that compress answers weaken them."""
    tags = [tag.strip().removeprefix("W/") for tag in request.headers.get(header, "").split(",")]
    return [tag for tag in tags if tag]
