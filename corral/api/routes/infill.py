"""`POST /infill`: validate, prepare, and answer as `POST /completion` does."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request, Response

from corral.api.openapi import EVENTS, answers, body_of
from corral.api.prepare_infill import InfillSettings, prepare_infill, require_marks
from corral.api.render.completion import NativeRenderer
from corral.api.respond import respond
from corral.api.schema.answer import COMPLETION
from corral.api.schema.infill import InfillRequest
from corral.api.service import require_generation, service_of

router = APIRouter(dependencies=[Depends(require_generation)])


@router.post(
    "/infill",
    openapi_extra=body_of(InfillRequest),
    responses=answers(COMPLETION, 501, also=[EVENTS]),
)
async def infill(request: Request) -> Response:
    """Write what is between two texts."""
    service = service_of(request)
    require_marks(service.vocab.fim)
    body, warnings = await service.take(InfillRequest, request)
    settings = InfillSettings(service.settings.engine.n_batch, service.settings.server.spm_infill)
    prepared = await service.run_in_prompt_pool(
        prepare_infill,
        body,
        service.vocab,
        service.limits,
        service.defaults,
        settings,
        service.system_prompt,
    )
    completion = await service.apply_server_changes(request, body, prepared.completion)
    renderer = NativeRenderer(service, body, [*warnings, *prepared.warnings], completion.is_list)
    return await respond(request, service, completion, renderer, body.stream)
