"""`GET /metrics`: numbers for Prometheus."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from corral.api import group
from corral.api.error_shape import LLAMA_ERRORS
from corral.api.openapi import TEXT, answers
from corral.api.policy import ModelUse, NamedIn, Role, Unloaded, for_model
from corral.api.router import Operation, Router
from corral.core.errors import NotSupported
from corral.core.key_role import Permission
from corral.generate.caller import caller_in
from corral.generate.services import ServerServices, Services

_MODEL = ModelUse(Role.ANY, NamedIn.QUERY_ONLY, Unloaded.REFUSE, wakes=False, progress=None)

router = Router()


@router.get(
    "/metrics",
    operation=Operation("getMetrics", "Get metrics for Prometheus", group.SERVER),
    policy=for_model(Permission.READ, LLAMA_ERRORS, _MODEL),
    responses=answers(None, 501, also=[TEXT]),
)
async def metrics(request: Request, services: ServerServices) -> Response:
    """What the server has done so far, and does now; of many models, each metric has a label."""
    server = services.server_metrics
    if server is None:
        raise NotSupported("This server does not support metrics endpoint. Start it with `--metrics`")
    from corral.telemetry.prometheus import CONTENT_TYPE, render_labelled, render_metrics

    if not isinstance(services, Services):
        visible = services.models.visible(caller_in(request.scope))
        found = [each.services.metrics for each in visible if each.services is not None]
        text = await render_labelled(server, [each for each in found if each is not None])
        return Response(text, media_type=CONTENT_TYPE)
    assert services.metrics is not None
    # compat: /metrics: by this, older clients notice a restart.
    headers = {"process-start-time-unix": str(services.started_at)}
    text = await render_metrics(server, services.metrics)
    return Response(text, media_type=CONTENT_TYPE, headers=headers)
