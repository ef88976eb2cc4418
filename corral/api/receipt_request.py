"""Requests that ask for a receipt."""

from __future__ import annotations

from starlette.requests import Request

from corral.api.prepare import PreparedCompletion
from corral.api.receipt import Signer
from corral.api.schema.completion import GenerationFields
from corral.api.state import state_of
from corral.core.errors import InvalidRequest, NotSupported

_WANTED = "corral.receipt"


def note_receipt(request: Request, body: GenerationFields) -> None:
    """Note that the answer shall have receipts. Raises NotSupported on a server without a key for them."""
    if not getattr(body, "receipt", False):
        return
    if state_of(request).receipt_key is None:
        raise NotSupported("Field 'receipt': the server has no key for receipts (--receipt-key)")
    request.scope[_WANTED] = True


async def open_signer(request: Request, prepared: PreparedCompletion) -> Signer | None:
    """Return what makes the receipts of a request, if it asks for them. The first call of a server reads the
    model file."""
    state = state_of(request)
    if not request.scope.get(_WANTED) or state.receipt_key is None:
        return None
    if any(task.media for task, _ in prepared.tasks):
        raise InvalidRequest(
            "an answer about media cannot be evaluated again from a receipt", field="receipt"
        )
    return Signer(state.receipt_key, state.model.name, await state.file_digest.wait(state.model.path))
