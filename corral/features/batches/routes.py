"""`/v1/batches`: many requests in a file, which run when nothing else does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from starlette.requests import Request
from starlette.responses import Response

from corral.api import group
from corral.api.body import JsonResponse
from corral.api.openapi import answers, body_of, queries
from corral.api.policy import Live, for_server
from corral.api.read_model import read_model
from corral.api.render.warning import render_warnings
from corral.api.responses.error import RESPONSES_ERRORS
from corral.api.router import Operation, PathParameter, Router
from corral.api.shared.page import QUERIES, render_page
from corral.core.errors import InvalidRequest, NotFound
from corral.core.key_role import Permission
from corral.features.batches.file_routes import batches_of
from corral.features.batches.line import MESSAGES
from corral.features.batches.render import render_batch
from corral.features.batches.runner import BatchRunner
from corral.features.batches.schema import BATCH, BATCHES, BatchRequest
from corral.generate.caller import caller_in
from corral.generate.services import ServerServices
from corral.storage.batch_record import BatchRecord, new_id

_POLICY = for_server(Permission.USE, RESPONSES_ERRORS)

router = Router()

_Id = Annotated[str, PathParameter("ID of the batch.")]
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@router.post(
    "/v1/batches",
    operation=Operation("createBatch", "Run the requests in a file (OpenAI)", group.BATCHES),
    policy=_POLICY,
    openapi_extra=body_of(BatchRequest),
    responses=answers(BATCH, 404, 501, 507),
)
async def create(request: Request, services: ServerServices) -> Response:
    """Run the requests in an uploaded file, below all other work."""
    runner, store, owner = batches_of(services, request)
    body = await read_model(request, services, BatchRequest)
    _check_endpoint(body.endpoint, services.batched_paths())
    file = await runner.on_disk(store.find_file, owner, body.input_file_id)
    if file.batch or file.purpose != "batch":
        raise InvalidRequest("must be a file with the purpose 'batch'", field="input_file_id")
    now, window = int(time.time()), body.completion_window
    batch = BatchRecord(
        id=new_id("batch_"),
        client=caller_in(request.scope).client,
        endpoint=body.endpoint,
        input_file_id=file.id,
        completion_window=window,
        created_at=now,
        expires_at=now + int(window[:-1]) * _SECONDS[window[-1]],
        metadata=body.metadata,
        output_expires_s=body.output_expires_after.seconds if body.output_expires_after else None,
    )
    await runner.submit(batch)
    return JsonResponse({**await _render(runner, batch), **render_warnings(body.warnings)})


@router.get(
    "/v1/batches",
    operation=Operation("listBatches", "List the batches (OpenAI)", group.BATCHES),
    policy=_POLICY,
    openapi_extra=queries(*QUERIES),
    responses=answers(BATCHES, 400, 501),
)
async def batches(request: Request, services: ServerServices) -> Response:
    """All batches of the key."""
    runner, store, owner = batches_of(services, request)
    found = [each for each in await runner.on_disk(store.list_batches, owner) if each.endpoint != MESSAGES]
    page = render_page([{"id": batch.id, "batch": batch} for batch in found], request.query_params)
    page["data"] = [await _render(runner, item["batch"]) for item in page["data"]]
    return JsonResponse(page)


@router.get(
    "/v1/batches/{id}",
    operation=Operation("getBatch", "Get a batch (OpenAI)", group.BATCHES),
    policy=replace(_POLICY, live=Live.BATCH),
    responses=answers(BATCH, 404, 501),
)
async def retrieve(request: Request, services: ServerServices, id: _Id) -> Response:
    """A batch, and how far it is."""
    runner, _, owner = batches_of(services, request)
    batch = await find_batch(runner, owner, id, is_messages=False)
    return JsonResponse(await _render(runner, batch))


@router.post(
    "/v1/batches/{id}/cancel",
    operation=Operation("cancelBatch", "Cancel a batch (OpenAI)", group.BATCHES),
    policy=replace(_POLICY, live=Live.BATCH),
    responses=answers(BATCH, 404, 501),
)
async def cancel(request: Request, services: ServerServices, id: _Id) -> Response:
    """Stop a batch; results that it has stay. One that has ended is not changed."""
    runner, _, owner = batches_of(services, request)
    batch = await find_batch(runner, owner, id, is_messages=False)
    await runner.cancel(batch)
    return JsonResponse(await _render(runner, batch))


async def find_batch(runner: BatchRunner, owner: str, id: str, is_messages: bool) -> BatchRecord:
    """Return a batch of this API."""
    batch = await runner.load(owner, id)
    if (batch.endpoint == MESSAGES) != is_messages:
        raise NotFound(f"batch '{id:.64}' not found")
    return batch


def _check_endpoint(endpoint: str, known: Sequence[str]) -> None:
    if endpoint not in known:
        *others, last = (f"'{path}'" for path in known)
        raise InvalidRequest(f"Input should be {', '.join(others)} or {last}", field="endpoint")


async def _render(runner: BatchRunner, batch: BatchRecord) -> dict[str, Any]:
    return render_batch(*await runner.progress(batch), runner.eta_s(batch.id))
