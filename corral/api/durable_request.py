"""Find out whether a request is durable: it asks for it, or has a session or runs in the background."""

from __future__ import annotations

import msgspec
from starlette.requests import Request

from corral.api.caller import caller_in, change_caller
from corral.api.durable import DurableWork, new_opening
from corral.api.schema.completion import GenerationFields
from corral.api.state import AppState, state_of
from corral.core.answer_id import use_source
from corral.core.errors import Conflict

HEADER = "x-durable"
_BODY = "corral.body"
_TRUE = ("1", "true")


def keep_body(request: Request, body: bytearray) -> None:
    """Keep the body of a request that may be durable, for the journal."""
    if state_of(request).journal is None:
        return
    is_named = any(name in request.headers for name in (HEADER, "x-conversation-id"))
    if is_named or b'"durable"' in body or b'"background"' in body:
        request.scope[_BODY] = bytes(body)


def begin_work(request: Request, body: GenerationFields) -> None:
    """Make the request durable if it is to be: ids in its answer follow from its record."""
    work = caller_in(request.scope).work or _new_work(request, body)
    if work is None:
        use_source(None)
        return
    if work.is_resumed and work.opening.model != model_identity(state_of(request)):
        raise Conflict("the answer was begun by another model")
    change_caller(request.scope, work=work)
    work.keeps_progress, work.keeps_timings = body.return_progress, body.timings_per_token
    work.draw_ids()
    body.warnings.extend(work.remarks)


def _new_work(request: Request, body: GenerationFields) -> DurableWork | None:
    state, caller = state_of(request), caller_in(request.scope)
    record, session = caller.record, caller.session
    is_asked = body.durable or request.headers.get(HEADER, "").lower() in _TRUE
    is_background = bool(getattr(body, "background", False))
    if is_asked and not (body.stream or is_background):
        body.warnings.append("Field 'durable': has no effect without 'stream'")
    has_ids = is_asked and body.stream and not is_background
    is_kept = state.journal is not None and (is_background or (body.stream and session is not None))
    if not (has_ids or is_kept):
        return None
    use_source(None)
    raw = request.scope.get(_BODY, b"")
    opening = new_opening(request, record.client, record.id, raw, model_identity(state))
    id = session.id if session is not None else opening.id
    opening = msgspec.structs.replace(
        opening, id=id, has_ids=has_ids, is_background=is_background, model_name=state.model.name
    )
    if session is not None:
        session.has_ids = has_ids
    return DurableWork(state.journal, opening, session=session)


def model_identity(state: AppState) -> str:
    """Return what distinguishes the model from others, as far as is known without reading its file."""
    info = state.model.info
    return f"{state.model.name} {info.description} {info.n_params} {info.n_bytes} {info.n_vocab}"
