"""`/engines/update`: another model file for all engines, without a lost stream."""

from __future__ import annotations

import asyncio
import os

from starlette.responses import Response

from corral.api import group
from corral.api.answer import SUCCESS
from corral.api.body import JsonResponse
from corral.api.error_shape import LLAMA_ERRORS
from corral.api.native.engine import CHANGED_MODEL, fleet_of
from corral.api.openapi import answers
from corral.api.policy import for_model
from corral.api.router import Operation, Router
from corral.core.errors import Conflict, CorralError, InvalidRequest, NotFound
from corral.core.key_role import Permission
from corral.generate.call import Call
from corral.gguf.model_file import check_model_file
from corral.gguf.tokenizer_digest import tokenizer_digest
from corral.schema.engine import UpdateRequest

router = Router()


@router.post(
    "/engines/update",
    operation=Operation("updateEngines", "Replace the model file of all engines", group.SERVER),
    policy=for_model(Permission.CHANGE, LLAMA_ERRORS, CHANGED_MODEL),
    body=UpdateRequest,
    needs=fleet_of,
    responses=answers(SUCCESS, 403, 404, 409, 501),
)
async def update(call: Call[UpdateRequest]) -> Response:
    """Replace the model file of all engines; the answer comes when all have it."""
    fleet, model = fleet_of(call.services), call.services.model
    path = _path_beside(model.path, call.body.model)
    await asyncio.to_thread(_check, path, model.path)
    await fleet.update(path)
    model.path = path
    return JsonResponse({"success": True})


def _path_beside(present: str, name: str) -> str:
    """Only file names: a client must not find out what other files there are."""
    if os.path.basename(name) != name or name in ("", ".", ".."):
        raise InvalidRequest("expected the name of a file in the directory of the model", field="model")
    return os.path.join(os.path.dirname(present), name)


def _check(path: str, present: str) -> None:
    """Raise unless it is a model with the same tokenizer and chat template, which the front keeps."""
    name = f"{os.path.basename(path):.64}"
    if not os.path.isfile(path):
        raise NotFound(f"the directory of the model has no file {name}")
    try:
        check_model_file(path)
        is_same = tokenizer_digest(path) == tokenizer_digest(present)
    except CorralError as error:
        raise Conflict(error.message.replace(path, name)) from None
    if not is_same:
        raise Conflict("the file has another vocabulary or chat template: start a server with it")
