"""Open the engine, or the engines, of one model, as its options say: on the event loop; nothing starts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from corral.core.result import Loading
from corral.core.settings import EngineSettings, ServerSettings
from corral.link.client import EngineClient
from corral.telemetry.dispatcher import Telemetry

if TYPE_CHECKING:
    from corral.fleet.fleet import Fleet


def open_engines(
    engine: EngineSettings,
    server: ServerSettings,
    telemetry: Telemetry,
    on_restart: Callable[[str], None],
    on_loading: Callable[[Loading], None] = lambda _: None,
) -> EngineClient | Fleet:
    """Open as many as `--engines` and `--ray` say."""
    if server.n_engines == 1 and not server.ray:
        return EngineClient(
            engine,
            server.engine_timeout_s,
            telemetry,
            server.engine_restarts,
            server.sleep_idle_s,
            on_loading,
            on_restart,
        )
    from corral.fleet.fleet import Fleet

    more: dict[str, Any] = {}
    if server.engines_min >= 0:
        from corral.fleet.autoscale import ScaleLimits

        wait_s, idle_s = server.engines_wait_ms / 1e3, server.engines_idle_seconds
        more["scale"] = ScaleLimits(min(server.engines_min, server.n_engines), wait_s, idle_s)
    if server.ray:
        from corral.fleet.ray.node_share import shares_on_nodes
        from corral.fleet.ray.transport import open_in_cluster

        more |= {"open_transport": partial(open_in_cluster, server), "share_out": shares_on_nodes}
    return Fleet(
        engine,
        server.n_engines,
        server.engine_timeout_s,
        telemetry,
        server.engine_restarts,
        server.sleep_idle_s,
        on_loading,
        on_restart,
        **more,
    )
