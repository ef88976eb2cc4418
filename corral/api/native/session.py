"""`/sessions`: what slots held, kept by the server under names. Each API key has its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated, Any

from starlette.requests import Request
from starlette.responses import Response

from corral.api import group
from corral.api.answer import SESSION_ACTION, SESSIONS
from corral.api.body import JsonResponse
from corral.api.error_shape import LLAMA_ERRORS
from corral.api.native.slot import SLOT, WAIT, restore_file
from corral.api.native.slot_call import SlotCall, action_of, require_slots
from corral.api.openapi import answers, body_of, queries, query
from corral.api.policy import ModelUse, NamedIn, Role, Unloaded, for_model
from corral.api.router import Operation, PathParameter, Router
from corral.api.storage import owner_of
from corral.core.errors import NotSupported
from corral.core.key_role import Permission
from corral.core.task import Verb
from corral.generate.caller import caller_in
from corral.generate.services import Services
from corral.schema.state import SessionRequest
from corral.storage.blob import Blob, read_pieces
from corral.storage.save_directory import NAME, NamedFile, SaveDirectory, check_name
from corral.storage.session import render_id

_MODEL = ModelUse(Role.ANY, NamedIn.QUERY, Unloaded.LOAD, wakes=True, progress=None)

router = Router()

_NAME: Any = {"type": "string", "pattern": f"^{NAME.pattern}$"}
_Session = Annotated[str, PathParameter("Name of the session.", _NAME)]


@router.get(
    "/sessions",
    operation=Operation("listSessions", "List the saved sessions", group.SLOTS),
    policy=for_model(Permission.READ, LLAMA_ERRORS, replace(_MODEL, unloaded=Unloaded.REFUSE, wakes=False)),
    responses=answers(SESSIONS, 501),
)
async def sessions(request: Request, services: Services) -> Response:
    """All sessions of the key."""
    require_slots(services)
    return JsonResponse(
        [
            {
                "id": render_id(info.name),
                "size": info.n_bytes,
                "created_at": info.created_at,
                "updated_at": info.updated_at,
            }
            for info in services.states.sessions.list(owner_of(caller_in(request.scope).client))
        ]
    )


@router.post(
    "/sessions/{id_session}",
    operation=Operation("runSessionAction", "Save, restore, fork or remove a session", group.SLOTS),
    policy=for_model(Permission.USE, LLAMA_ERRORS, _MODEL),
    openapi_extra=queries(
        query("action", "The action.", required=True, enum=["save", "restore", "fork", "remove"]),
        SLOT,
        WAIT,
        query("to", "Name of the new session (fork).", **_NAME),
        **body_of(SessionRequest, required=False),
    ),
    responses=answers(SESSION_ACTION, 404, 409, 501, 507),
)
async def act(request: Request, services: Services, id_session: _Session) -> Response:
    """Save a slot as a session, restore or fork it into a slot, or remove it."""
    require_slots(services)
    action = _ACTIONS[action_of(request, _ACTIONS)]
    return await action(_SessionCall(request, services, check_name(id_session, "id_session")))


class _SessionCall(SlotCall):
    """A request for an action on a session, and the slot that the query names."""

    def __init__(self, request: Request, services: Services, name: str) -> None:
        super().__init__(request, services)
        self.store = self.states.sessions
        self.name = name
        self.id = render_id(name)
        self.owner = owner_of(self.caller.client)

    async def file(self) -> tuple[SaveDirectory, str] | None:
        """Return the file that the body names, if any."""
        body = await self.read(SessionRequest, default={})
        if not body.file:
            return None
        saves = self.saves
        if saves is None:
            raise NotSupported(
                "Field 'file': this server does not save files. Start it with `--slot-save-path`"
            )
        return saves, check_name(body.file, "file")


async def _save(call: _SessionCall) -> Response:
    async with call.limit("session"):
        with Blob.create() as blob:
            report = await call.run(Verb.SAVE, blob.fd)
            await call.store.put(call.name, blob, call.owner)
    return JsonResponse(
        {
            "id_session": call.id,
            "id_slot": report.id_slot,
            "n_tokens": report.n_tokens,
            "n_bytes": report.n_bytes,
            "t_ms": report.ms,
        }
    )


async def _restore(call: _SessionCall) -> Response:
    file = await call.file()
    if file is not None:
        report = await restore_file(call, *file)
    else:
        with call.store.open(call.name, call.owner) as blob:
            report = await call.run(Verb.RESTORE, blob.fd, is_ours=True)
    return JsonResponse(
        {
            "id_session": call.id,
            "id_slot": report.id_slot,
            "n_tokens": report.n_tokens,
            "n_bytes_read": report.n_bytes,
            "success": True,
            "t_ms": report.ms,
        }
    )


async def _fork(call: _SessionCall) -> Response:
    """Fork into another slot, into another session (`to`), or both."""
    to = call.request.query_params.get("to")
    if to is None:
        return await _restore(call)
    await call.store.copy(call.name, check_name(to, "to"), call.owner)
    if "slot" in call.request.query_params:
        return await _restore(call)
    return JsonResponse({"id_session": render_id(to), "id_source": call.id, "success": True})


async def _remove(call: _SessionCall) -> Response:
    file = await call.file()
    answer: dict[str, Any] = {"id_session": call.id, "removed": True}
    if file is not None:
        saves, name = file
        with call.store.open(call.name, call.owner) as blob, saves.create(name) as target:
            await asyncio.to_thread(_copy, blob, target)
            answer |= {"file": name, "n_bytes": blob.n_bytes}
    await call.store.remove(call.name, call.owner)
    return JsonResponse(answer)


def _copy(blob: Blob, target: NamedFile) -> None:
    target.write(read_pieces(blob.fd, blob.n_bytes))
    target.commit()


_ACTIONS: dict[str, Callable[[_SessionCall], Awaitable[Response]]] = {
    "save": _save,
    "restore": _restore,
    "fork": _fork,
    "remove": _remove,
}
