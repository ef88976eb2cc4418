"""The engines of a Ray cluster for `Fleet`: each is reached through a process of its own (`bridge`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corral.cluster.event_split import first_id, number_front
from corral.cluster.message import Asked
from corral.cluster.node_share import shares_on_nodes
from corral.core.settings import ServerSettings
from corral.link.process import EngineProcess, OnEvents, OpenEnd

_LEAVE_S = 5.0


class RayEnd(EngineProcess):
    module = "corral.cluster.bridge"
    is_remote = True

    def __init__(self, on_events: OnEvents, asked: Asked) -> None:
        super().__init__(on_events)
        self.arguments = asked.arguments

    @property
    def pid(self) -> int | None:
        return None  # it runs elsewhere


class SharedEnd(RayEnd):
    """An engine that other fronts use, too."""

    async def close(self) -> int | None:
        """Leave the engine before the bridge ends."""
        if self._transport is not None:
            await self.stop(_LEAVE_S)
        return await super().close()


def in_cluster(server: ServerSettings) -> dict[str, Any]:
    """Return the options of a `Fleet` whose engines are in the cluster."""
    if not server.front_group:
        return {"open_end": _open_end(server), "share_out": shares_on_nodes}
    front = number_front(server.front_index)
    return {
        "open_end": _open_end(server, front),
        "share_out": shares_on_nodes,
        "first_id": first_id(front),
        "is_shared": True,
    }


def _open_end(server: ServerSettings, front: int = 0) -> Callable[[int], OpenEnd]:
    """Return what opens the engine with a number. `front`: the number of this one, if several share them."""

    def of(index: int) -> OpenEnd:
        shared = f"engine-{server.front_group}-{index}" if server.front_group else ""
        asked = Asked(
            server.ray,
            server.n_engines,
            server.ray_gpus,
            server.rpc_workers,
            server.allow_insecure_cluster,
            shared,
            front,
            server.engine_timeout_s,
        )
        kind = SharedEnd if shared else RayEnd
        return lambda on_events: kind(on_events, asked)

    return of
