"""Find out whether a request is durable: it asks for it, or has a log or runs in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from corral.core.answer_id import use_source
from corral.core.errors import Conflict
from corral.features.durable.work import DurableWork, new_opening
from corral.schema.completion import GenerationFields

if TYPE_CHECKING:
    from corral.api.incoming import Incoming
    from corral.generate.services import Services
    from corral.schema.parse import RequestModel

HEADER = "x-durable"
_TRUE = ("1", "true")


def begin_work(
    incoming: Incoming, services: Services, body: RequestModel, raw: bytearray
) -> DurableWork | None:
    """Make the request durable if it is to be: ids in its answer follow from its record. `raw`: its body as
    it was sent."""
    assert isinstance(body, GenerationFields), "what continues without its client is generated"
    work = incoming.caller.work or _new_work(incoming, services, body, raw)
    if work is None:
        use_source(None)
        return None
    if work.is_resumed and work.opening.model != model_identity(services):
        raise Conflict("the answer was begun by another model")
    work.keeps_progress, work.keeps_timings = body.return_progress, body.timings_per_token
    work.draw_ids()
    body.warnings.extend(work.remarks)
    return work


def _new_work(
    incoming: Incoming, services: Services, body: GenerationFields, raw: bytearray
) -> DurableWork | None:
    caller, headers = incoming.caller, incoming.headers
    log, journal = caller.log, services.journal
    is_asked = body.durable or headers.get(HEADER, "").lower() in _TRUE
    is_background = bool(getattr(body, "background", False))
    if is_asked and not (body.stream or is_background):
        body.warnings.append("Field 'durable': has no effect without 'stream'")
    has_ids = is_asked and body.stream and not is_background
    is_kept = journal is not None and (is_background or (body.stream and log is not None))
    if not (has_ids or is_kept):
        return None
    use_source(None)
    kept = bytes(raw) if journal is not None else b""
    opening = new_opening(
        incoming.path, headers, caller.client, caller.record.id, kept, model_identity(services)
    )
    id = log.id if log is not None else opening.id
    opening = msgspec.structs.replace(
        opening, id=id, has_ids=has_ids, is_background=is_background, model_name=services.model.name
    )
    if log is not None:
        log.has_ids = has_ids
    return DurableWork(journal, opening, log=log)


def model_identity(services: Services) -> str:
    """Return what distinguishes the model from others, as far as is known without reading its file."""
    info = services.model.info
    return f"{services.model.name} {info.description} {info.n_params} {info.n_bytes} {info.n_vocab}"
