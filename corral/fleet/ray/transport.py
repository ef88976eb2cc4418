"""The engines of a Ray cluster for `Fleet`: each is reached through a process of its own (`bridge`)."""

from __future__ import annotations

from corral.core.settings import ServerSettings
from corral.fleet.ray.message import Asked
from corral.link.process import EngineProcess, OnEvents, OpenTransport


class RayEnd(EngineProcess):
    module = "corral.fleet.ray.bridge"
    is_remote = True

    def __init__(self, on_events: OnEvents, asked: Asked) -> None:
        super().__init__(on_events)
        self.arguments = asked.arguments

    @property
    def pid(self) -> int | None:
        return None  # it runs elsewhere


def open_in_cluster(server: ServerSettings, index: int) -> OpenTransport:
    """Return what opens the engine with this number."""
    asked = Asked(
        server.ray,
        index,
        server.n_engines,
        server.ray_gpus,
        server.rpc_workers,
        server.allow_insecure_cluster,
    )
    return lambda on_events: RayEnd(on_events, asked)
