"""`/v1/files`: files that clients upload for batches, and the results of batches."""

from __future__ import annotations

import time
from typing import Annotated, Any

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import Response

from corral.api import group
from corral.api.body import JsonResponse
from corral.api.openapi import BINARY, answers, queries, query
from corral.api.policy import for_server
from corral.api.query_number import parse_number
from corral.api.responses.error import RESPONSES_ERRORS
from corral.api.router import Operation, PathParameter, Router
from corral.api.shared.page import QUERIES, render_page
from corral.core.errors import Conflict, InvalidRequest, NotSupported, TooLarge
from corral.core.key_role import Permission
from corral.features.batches.content import respond_file
from corral.features.batches.render import render_file
from corral.features.batches.runner import BatchRunner
from corral.features.batches.schema import FILE, FILE_DELETED, FILES, MAX_EXPIRY_S, MIN_EXPIRY_S
from corral.features.batches.upload import read_form
from corral.generate.caller import caller_in
from corral.generate.services import ServerServices
from corral.storage.batch_record import FileRecord, new_id
from corral.storage.batch_store import MAX_FILE_BYTES, MAX_FILES, BatchStore

_POLICY = for_server(Permission.USE, RESPONSES_ERRORS)

router = Router()

_Id = Annotated[str, PathParameter("ID of the file.")]
_MAX_NAME = 255
_PURPOSES = ("batch", "user_data", "assistants", "fine-tune", "vision", "evals")
_FORM: dict[str, Any] = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"enum": list(_PURPOSES)},
        "expires_after[anchor]": {"const": "created_at"},
        "expires_after[seconds]": {"type": "integer", "minimum": MIN_EXPIRY_S, "maximum": MAX_EXPIRY_S},
    },
}
_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}
}


def batches_of(services: ServerServices, request: Request) -> tuple[BatchRunner, BatchStore, str]:
    """Return what runs batches, what keeps them, and the key of this request."""
    if services.batches is None or services.storage.batches is None:
        raise NotSupported("This server keeps no files and batches. Start it with `--batches DIR`")
    return services.batches, services.storage.batches, caller_in(request.scope).client.id


@router.post(
    "/v1/files",
    operation=Operation("uploadFile", "Upload a file (OpenAI)", group.BATCHES),
    policy=_POLICY,
    openapi_extra=_BODY,
    responses=answers(FILE, 501, 507),
)
async def upload(request: Request, services: ServerServices) -> Response:
    """Upload a file, for a batch."""
    runner, store, owner = batches_of(services, request)
    async with read_form(request.headers.get("content-type", ""), request.stream()) as form:
        file, content = _parse(form)
        await runner.on_disk(store.add_file, owner, file, content.file)
    return JsonResponse(render_file(file))


@router.get(
    "/v1/files",
    operation=Operation("listFiles", "List the files (OpenAI)", group.BATCHES),
    policy=_POLICY,
    openapi_extra=queries(*QUERIES, query("purpose", "List only files with this purpose.", type="string")),
    responses=answers(FILES, 400, 501),
)
async def files(request: Request, services: ServerServices) -> Response:
    """All files of the key."""
    runner, store, owner = batches_of(services, request)
    purpose = request.query_params.get("purpose")
    found = await runner.on_disk(store.list_files, owner)
    rendered = [render_file(file) for file in found if purpose in (None, file.purpose)]
    return JsonResponse(render_page(rendered, request.query_params, MAX_FILES))


@router.get(
    "/v1/files/{id}",
    operation=Operation("getFile", "Get what is known of a file (OpenAI)", group.BATCHES),
    policy=_POLICY,
    responses=answers(FILE, 404, 501),
)
async def retrieve(request: Request, services: ServerServices, id: _Id) -> Response:
    """What is known of a file."""
    runner, store, owner = batches_of(services, request)
    return JsonResponse(render_file(await runner.on_disk(store.find_file, owner, id)))


@router.get(
    "/v1/files/{id}/content",
    operation=Operation("getFileContent", "Get the content of a file (OpenAI)", group.BATCHES),
    policy=_POLICY,
    responses=answers(None, 404, 501, also=[BINARY]),
)
async def content(request: Request, services: ServerServices, id: _Id) -> Response:
    """The content of a file."""
    runner, store, owner = batches_of(services, request)
    return respond_file(runner, store, await runner.on_disk(store.find_file, owner, id))


@router.delete(
    "/v1/files/{id}",
    operation=Operation("deleteFile", "Delete a file (OpenAI)", group.BATCHES),
    policy=_POLICY,
    responses=answers(FILE_DELETED, 404, 409, 501),
)
async def delete(request: Request, services: ServerServices, id: _Id) -> Response:
    """Delete a file."""
    runner, store, owner = batches_of(services, request)
    await runner.on_disk(store.find_file, owner, id)
    if await runner.on_disk(store.is_used, id):
        raise Conflict("a batch reads this file; cancel it first")
    await runner.on_disk(store.remove_file, owner, id)
    return JsonResponse({"id": id, "object": "file", "deleted": True})


def _parse(form: FormData) -> tuple[FileRecord, UploadFile]:
    upload, purpose = form.get("file"), form.get("purpose")
    if not isinstance(upload, UploadFile):
        raise InvalidRequest("must be a file", field="file")
    if purpose not in _PURPOSES:
        raise InvalidRequest(f"must be one of {', '.join(_PURPOSES)}", field="purpose")
    n_bytes = upload.size or 0
    if n_bytes > MAX_FILE_BYTES:
        raise TooLarge(f"a file may have at most {MAX_FILE_BYTES >> 20} MiB")
    now, expiry_s = int(time.time()), _expiry_s(form)
    file = FileRecord(
        id=new_id("file-"),
        purpose=str(purpose),
        filename=(upload.filename or "file")[:_MAX_NAME],
        n_bytes=n_bytes,
        created_at=now,
        expires_at=now + expiry_s if expiry_s else None,
    )
    return file, upload


def _expiry_s(form: FormData) -> int:
    text = form.get("expires_after[seconds]")
    return parse_number(str(text), "expires_after", MIN_EXPIRY_S, MAX_EXPIRY_S) if text else 0
