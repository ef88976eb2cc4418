"""`POST /slots/{id}?action=...` and `GET /v1/slots/{id}/info`: what a slot holds, saved, restored and cut."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator
from typing import Annotated, Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from corral.api import group
from corral.api.answer import SLOT_ACTION, SLOT_INFO
from corral.api.blob_response import BlobResponse
from corral.api.body import JsonResponse
from corral.api.error_shape import LLAMA_ERRORS
from corral.api.native.slot_call import SlotCall, action_of, require_slots
from corral.api.openapi import BINARY, answers, body_of, queries, query
from corral.api.policy import ModelUse, NamedIn, Role, Unloaded, for_model
from corral.api.render.state import render_boundaries
from corral.api.router import Operation, PathParameter, Router
from corral.core.errors import NotSupported
from corral.core.key_role import Permission
from corral.core.result import SlotReport
from corral.core.task import Busy, Verb
from corral.generate.services import Services
from corral.schema.parse import parse_request
from corral.schema.state import ShiftRequest, SlotFileRequest, StateRequest
from corral.storage.blob import Blob, decode_state, read_base64, read_pieces, receive
from corral.storage.save_directory import SaveDirectory, check_name

_MODEL = ModelUse(Role.ANY, NamedIn.QUERY, Unloaded.LOAD, wakes=True, progress=None)

router = Router()

_HEAD_ROOM = 64 << 10  # of what is around a state in a body
_FILE_ACTIONS = ("save", "restore", "erase")
_STATE_ACTIONS = ("save-state", "restore-state", "tokens", "context-shift", "fork")
_SLOT: Any = {"type": "integer", "minimum": 0}
_Slot = Annotated[str, PathParameter("Number of the slot.", _SLOT)]
WAIT = query("wait", "`0` or `false`: answer 409 instead of waiting if the slot is busy.", type="string")
SLOT = query("slot", "The slot to restore into.", **_SLOT)


@router.post(
    "/slots/{id_slot}",
    operation=Operation("runSlotAction", "Save, restore or edit a slot", group.SLOTS),
    policy=for_model(Permission.USE, LLAMA_ERRORS, _MODEL),
    openapi_extra=queries(
        query("action", "The action.", required=True, enum=[*_FILE_ACTIONS, *_STATE_ACTIONS]),
        SLOT,
        WAIT,
        query("format", "Of a saved file.", enum=["ses1", "ggsq"]),
        **body_of(SlotFileRequest, ShiftRequest, StateRequest, required=False, also=(BINARY,)),
    ),
    responses=answers(SLOT_ACTION, 404, 409, 501, 507, also=[BINARY]),
)
async def act(request: Request, services: Services, id_slot: _Slot) -> Response:
    """Save, restore, erase, fork or shorten what a slot holds; `?wait=0`: not if it is busy."""
    name = action_of(request, _ACTIONS)
    if name not in _FILE_ACTIONS:
        require_slots(services)
    elif services.states.saves is None:
        raise NotSupported("This server does not support slots action. Start it with `--slot-save-path`")
    return await _ACTIONS[name](SlotCall(request, services, id_slot))


@router.get(
    "/v1/slots/{id_slot}/info",
    "/slots/{id_slot}/info",
    operation=Operation("getSlotInfo", "Get the size of a slot's content and its messages", group.SLOTS),
    policy=for_model(Permission.READ, LLAMA_ERRORS, _MODEL),
    responses=answers(SLOT_INFO, 400, 404, 501),
)
async def info(request: Request, services: Services, id_slot: _Slot) -> Response:
    """How many tokens a slot has, and where its messages are."""
    require_slots(services)
    report = await SlotCall(request, services, id_slot).run(Verb.TOKENS, busy=Busy.IGNORE, sees_all=True)
    return JsonResponse(render_boundaries(report.tokens, services.model.chat.turn_end))


async def _file(call: SlotCall) -> SlotFileRequest:
    body = await call.read(SlotFileRequest)
    check_name(body.filename, "filename")
    format = call.request.query_params.get("format")
    return parse_request(SlotFileRequest, {"filename": body.filename, "format": format or body.format})


async def _save(call: SlotCall) -> Response:
    wanted = await _file(call)
    name = wanted.filename
    saves = call.saves
    assert saves is not None
    with saves.create(name) as file:
        report = await call.run(Verb.SAVE, file.fd, is_ggsq=wanted.format == "ggsq")
        await asyncio.to_thread(file.commit)
    return JsonResponse(
        {
            "id_slot": report.id_slot,
            "filename": name,
            "n_saved": report.n_tokens,
            "n_written": report.n_bytes,
            "timings": {"save_ms": report.ms},
        }
    )


async def _restore(call: SlotCall) -> Response:
    name = (await _file(call)).filename
    saves = call.saves
    assert saves is not None
    report = await restore_file(call, saves, name)
    return JsonResponse(
        {
            "id_slot": report.id_slot,
            "filename": name,
            "n_restored": report.n_tokens,
            "n_read": report.n_bytes,
            "timings": {"restore_ms": report.ms},
        }
    )


async def restore_file(call: SlotCall, saves: SaveDirectory, name: str) -> SlotReport:
    """Restore a slot from a file that this server, or another one with the same model, has saved."""
    with Blob(await asyncio.to_thread(saves.open, name)) as file:
        return await call.run(Verb.RESTORE, file.fd, is_ours=True)


async def _erase(call: SlotCall) -> Response:
    report = await call.run(Verb.ERASE)
    return JsonResponse({"id_slot": report.id_slot, "n_erased": report.n_tokens})


async def _save_state(call: SlotCall) -> Response:
    async with contextlib.AsyncExitStack() as held:
        await held.enter_async_context(call.limit("out"))
        blob = held.enter_context(Blob.create())
        report = await call.run(Verb.SAVE, blob.fd)
        if BINARY in call.request.headers.get("accept", ""):
            n_bytes, pieces, kind = report.n_bytes, read_pieces(blob.fd, report.n_bytes), BINARY
        else:
            n_bytes, pieces = _render_blob(report, read_base64(blob.fd, report.n_bytes))
            kind = JsonResponse.media_type
        return BlobResponse(pieces, n_bytes, kind, on_end=held.pop_all().aclose)


def _render_blob(report: SlotReport, base64: Iterator[bytes]) -> tuple[int, Iterator[bytes]]:
    """Return the length of the answer as JSON, and its pieces."""
    facts = {
        "id_slot": report.id_slot,
        "n_tokens": report.n_tokens,
        "n_bytes": report.n_bytes,
        "t_ms": report.ms,
    }
    head, tail = orjson.dumps(facts)[:-1] + b',"state":"', b'"}'
    n_base64 = (report.n_bytes + 2) // 3 * 4
    return len(head) + n_base64 + len(tail), itertools.chain([head], base64, [tail])


async def _restore_state(call: SlotCall) -> Response:
    async with call.limit("in"):
        with await _receive_state(call) as blob:
            report = await call.run(Verb.RESTORE, blob.fd)
    return JsonResponse(
        {"id_slot": report.id_slot, "n_bytes_read": report.n_bytes, "success": True, "t_ms": report.ms}
    )


async def _receive_state(call: SlotCall) -> Blob:
    parts = call.request.stream()
    n_max = call.info.n_state_bytes + 4 * call.info.n_ctx + _HEAD_ROOM
    if call.request.headers.get("content-type", "").startswith(BINARY):
        return await receive(parts, n_max)
    with await receive(parts, n_max * 4 // 3 + _HEAD_ROOM) as body:
        n_json = call.services.settings.server.max_body_mib << 20
        return await call.services.pools.run_text(call.caller.client, decode_state, body, n_json)


async def _tokens(call: SlotCall) -> Response:
    report = await call.run(Verb.TOKENS)
    return JsonResponse(
        {
            "id_slot": report.id_slot,
            "n_tokens": report.n_tokens,
            "tokens": report.tokens,
            "n_prompt_tokens_processed": report.n_evaluated,
        }
    )


async def _context_shift(call: SlotCall) -> Response:
    body = await call.read(ShiftRequest)
    report = await call.run(Verb.SHIFT, n_keep=body.n_keep, n_discard=body.n_discard)
    return JsonResponse({"success": True, "new_n_tokens": report.n_tokens})


async def _fork(call: SlotCall) -> Response:
    """Copy the slot of the path into the one that `slot` names."""
    source = call.slot
    report = await call.run(Verb.FORK, slot=call.target, source=source)
    return JsonResponse(
        {
            "id_slot": report.id_slot,
            "id_source": source,
            "n_tokens": report.n_tokens,
            "success": True,
            "t_ms": report.ms,
        }
    )


_ACTIONS = {
    "save": _save,
    "restore": _restore,
    "erase": _erase,
    "save-state": _save_state,
    "restore-state": _restore_state,
    "tokens": _tokens,
    "context-shift": _context_shift,
    "fork": _fork,
}
