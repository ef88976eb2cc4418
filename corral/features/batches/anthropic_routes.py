"""`/v1/messages/batches`: many messages at once, which run when nothing else does."""

from __future__ import annotations

import io
import time
from dataclasses import replace
from datetime import datetime, timezone
from typing import Annotated, Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from corral.api import group
from corral.api.anthropic.error import MESSAGES_ERRORS
from corral.api.anthropic.reply import render_page, with_id
from corral.api.body import JsonResponse
from corral.api.openapi import answers, body_of, queries, query
from corral.api.policy import Live, for_server
from corral.api.query_number import query_number
from corral.api.read_model import read_model
from corral.api.router import Operation, PathParameter, Router
from corral.core.errors import Conflict, InvalidRequest
from corral.core.key_role import Permission
from corral.features.batches.content import JSONL, respond_results
from corral.features.batches.file_routes import batches_of
from corral.features.batches.line import MESSAGES
from corral.features.batches.routes import find_batch
from corral.features.batches.runner import BatchRunner
from corral.features.batches.schema import (
    MESSAGE_BATCH,
    MESSAGE_BATCH_DELETED,
    MESSAGE_BATCHES,
    MessageBatchRequest,
)
from corral.generate.caller import caller_in
from corral.generate.services import ServerServices
from corral.storage.batch_record import BatchRecord, Counts, FileRecord, new_id

_POLICY = for_server(Permission.USE, MESSAGES_ERRORS)

router = Router()

_Id = Annotated[str, PathParameter("ID of the batch.")]
_WINDOW_S = 86400
_MAX_LIMIT, _DEFAULT_LIMIT = 1000, 20
_QUERIES = (
    query("after_id", "List batches after the one with this id.", type="string"),
    query("before_id", "List batches before the one with this id.", type="string"),
    query("limit", "The most batches to list.", type="integer", minimum=1, maximum=_MAX_LIMIT),
)


@router.post(
    "/v1/messages/batches",
    operation=Operation(
        "createMessageBatch", "Create many messages in the background (Anthropic)", group.MESSAGES
    ),
    policy=_POLICY,
    openapi_extra=body_of(MessageBatchRequest),
    responses=answers(MESSAGE_BATCH, 501, 507),
)
async def create(request: Request, services: ServerServices) -> Response:
    """Create many messages, below all other work, in Anthropic's shape."""
    runner, store, owner = batches_of(services, request)
    body = await read_model(request, services, MessageBatchRequest)
    now, lines = int(time.time()), _lines(body.requests)
    file = FileRecord(
        id=new_id("file-"),
        purpose="batch",
        filename="requests.jsonl",
        n_bytes=len(lines),
        created_at=now,
        expires_at=now + 30 * _WINDOW_S,
    )
    await runner.on_disk(store.add_file, owner, file, io.BytesIO(lines))
    batch = BatchRecord(
        id=new_id("msgbatch_"),
        client=caller_in(request.scope).client,
        endpoint=MESSAGES,
        input_file_id=file.id,
        completion_window="24h",
        created_at=now,
        expires_at=now + _WINDOW_S,
        total=len(body.requests),
    )
    await runner.submit(batch)
    return await _answer(request, runner, batch)


@router.get(
    "/v1/messages/batches",
    operation=Operation("listMessageBatches", "List the batches (Anthropic)", group.MESSAGES),
    policy=_POLICY,
    openapi_extra=queries(*_QUERIES),
    responses=answers(MESSAGE_BATCHES, 400, 501),
)
async def batches(request: Request, services: ServerServices) -> Response:
    """All batches of the key, newest first, in Anthropic's shape."""
    runner, store, owner = batches_of(services, request)
    params = request.query_params
    found = [each for each in await runner.on_disk(store.list_batches, owner) if each.endpoint == MESSAGES]
    found.reverse()
    ids = [batch.id for batch in found]
    first, end = 0, len(found)
    if "after_id" in params:
        first = _index(ids, params["after_id"], "after_id") + 1
    if "before_id" in params:
        end = _index(ids, params["before_id"], "before_id")
    limit = query_number(params, "limit", _DEFAULT_LIMIT, 1, _MAX_LIMIT)
    rest = found[first:end]
    page = rest[-limit:] if "before_id" in params else rest[:limit]
    data = [await _render(request, runner, batch) for batch in page]
    return with_id(caller_in(request.scope).record, JsonResponse(render_page(data, len(rest) > limit)))


@router.get(
    "/v1/messages/batches/{id}",
    operation=Operation("getMessageBatch", "Get a batch (Anthropic)", group.MESSAGES),
    policy=replace(_POLICY, live=Live.BATCH),
    responses=answers(MESSAGE_BATCH, 404, 501),
)
async def retrieve(request: Request, services: ServerServices, id: _Id) -> Response:
    """A batch, and how far it is, in Anthropic's shape."""
    runner, _, owner = batches_of(services, request)
    batch = await find_batch(runner, owner, id, is_messages=True)
    return await _answer(request, runner, batch)


@router.post(
    "/v1/messages/batches/{id}/cancel",
    operation=Operation("cancelMessageBatch", "Cancel a batch (Anthropic)", group.MESSAGES),
    policy=replace(_POLICY, live=Live.BATCH),
    responses=answers(MESSAGE_BATCH, 404, 501),
)
async def cancel(request: Request, services: ServerServices, id: _Id) -> Response:
    """Stop a batch; results that it has stay."""
    runner, _, owner = batches_of(services, request)
    batch = await find_batch(runner, owner, id, is_messages=True)
    await runner.cancel(batch)
    return await _answer(request, runner, batch)


@router.get(
    "/v1/messages/batches/{id}/results",
    operation=Operation("getMessageBatchResults", "Get a batch's results (Anthropic)", group.MESSAGES),
    policy=_POLICY,
    responses=answers(None, 404, 409, 501, also=[JSONL]),
)
async def results(request: Request, services: ServerServices, id: _Id) -> Response:
    """The results of a batch that has ended, one per line."""
    runner, store, owner = batches_of(services, request)
    batch = await find_batch(runner, owner, id, is_messages=True)
    if not batch.is_ended:
        raise Conflict("the batch has not ended")
    return with_id(caller_in(request.scope).record, respond_results(runner, store, batch.id, None))


@router.delete(
    "/v1/messages/batches/{id}",
    operation=Operation("deleteMessageBatch", "Delete a batch (Anthropic)", group.MESSAGES),
    policy=replace(_POLICY, live=Live.BATCH),
    responses=answers(MESSAGE_BATCH_DELETED, 404, 409, 501),
)
async def delete(request: Request, services: ServerServices, id: _Id) -> Response:
    """Delete a batch that has ended, and its results."""
    runner, store, owner = batches_of(services, request)
    batch = await find_batch(runner, owner, id, is_messages=True)
    if not batch.is_ended:
        raise Conflict("the batch has not ended; cancel it first")
    await runner.on_disk(store.remove_batch, batch)
    await runner.on_disk(store.remove_file, owner, batch.input_file_id)
    return with_id(caller_in(request.scope).record, JsonResponse({"id": id, "type": "message_batch_deleted"}))


def _lines(requests: list[Any]) -> bytes:
    """Return the requests as lines of an input file. Raises InvalidRequest, which names the first that is
    wrong."""
    seen: set[str] = set()
    lines = []
    for i, each in enumerate(requests):
        place = f"requests[{i}]"
        if not isinstance(each, dict) or not isinstance(each.get("params"), dict):
            raise InvalidRequest("must have 'params', an object", field=place)
        id = each.get("custom_id")
        if not isinstance(id, str) or not 0 < len(id) <= 64 or id in seen:
            raise InvalidRequest("must be a unique string of 1 to 64 characters", field=f"{place}.custom_id")
        if each["params"].get("stream"):
            raise InvalidRequest("not in a batch", field=f"{place}.params.stream")
        seen.add(id)
        lines.append(orjson.dumps({"custom_id": id, "body": each["params"]}) + b"\n")
    return b"".join(lines)


async def _answer(request: Request, runner: BatchRunner, batch: BatchRecord) -> Response:
    return with_id(caller_in(request.scope).record, JsonResponse(await _render(request, runner, batch)))


async def _render(request: Request, runner: BatchRunner, batch: BatchRecord) -> dict[str, Any]:
    return render_message_batch(*await runner.progress(batch), str(request.base_url))


def render_message_batch(batch: BatchRecord, counts: Counts, base_url: str) -> dict[str, Any]:
    is_canceling = batch.status == "cancelling"
    ended_at = batch.times.get(f"{batch.status}_at") if batch.is_ended else None
    n_left = batch.total - counts.ok - counts.error - counts.canceled - counts.expired
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": "ended" if batch.is_ended else "canceling" if is_canceling else "in_progress",
        "request_counts": {
            "processing": 0 if batch.is_ended else n_left,
            "succeeded": counts.ok,
            "errored": counts.error,
            "canceled": counts.canceled,
            "expired": counts.expired,
        },
        "created_at": _date(batch.created_at),
        "expires_at": _date(batch.expires_at),
        "ended_at": _date(ended_at),
        "cancel_initiated_at": _date(batch.times.get("cancelling_at")),
        "archived_at": None,
        "results_url": f"{base_url}v1/messages/batches/{batch.id}/results" if batch.is_ended else None,
    }


def _index(ids: list[str], id: str, field: str) -> int:
    if id not in ids:
        raise InvalidRequest(f"batch '{id:.64}' not found", field=field)
    return ids.index(id)


def _date(seconds: int | None) -> str | None:
    """Return a time as in RFC 3339."""
    return None if seconds is None else datetime.fromtimestamp(seconds, timezone.utc).isoformat()
