"""`GET /metrics`: numbers for Prometheus."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from corral.api import group
from corral.api.dialects.error_shape import LLAMA_ERRORS
from corral.api.openapi import TEXT, answers
from corral.api.policy import ModelUse, NamedIn, Role, Unloaded, for_model
from corral.api.router import Operation, Router
from corral.api.services import Services
from corral.core.errors import NotSupported
from corral.core.key_role import Permission

_MODEL = ModelUse(Role.ANY, NamedIn.QUERY_ONLY, Unloaded.REFUSE, wakes=False, progress=None)

router = Router()


@router.get(
    "/metrics",
    operation=Operation("getMetrics", "Get metrics for Prometheus", group.SERVER),
    policy=for_model(Permission.READ, LLAMA_ERRORS, _MODEL),
    responses=answers(None, 501, also=[TEXT]),
)
async def metrics(request: Request, services: Services) -> Response:
    """What the server has done so far, and does now."""
    found = request.app.state.metrics
    if found is None:
        raise NotSupported("This server does not support metrics endpoint. Start it with `--metrics`")
    from corral.telemetry.prometheus import CONTENT_TYPE

    # compat: /metrics: by this, older clients notice a restart.
    headers = {"process-start-time-unix": str(services.started_at)}
    return Response(await found.render(), media_type=CONTENT_TYPE, headers=headers)
