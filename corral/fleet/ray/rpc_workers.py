"""The RPC workers of one engine: actors that hold layers of its model. They end with the bridge."""

from __future__ import annotations

from typing import Any

from corral import __version__
from corral.fleet.ray.message import Asked, EnginePlace
from corral.fleet.ray.reservation import Reservation, await_place, reason_of
from corral.fleet.ray.rpc_host import RpcHost


class RpcWorkers:
    """Starts them; raises CorralError if one cannot start."""

    def __init__(self, ray: Any, asked: Asked, reservation: Reservation, n_threads: int) -> None:
        self._ray = ray
        hosts = [
            reservation.start(ray, RpcHost, f"rpc-worker-{asked.index}-{index}", index)
            for index in range(1, asked.n_rpc_workers + 1)
        ]
        arguments = (__version__, n_threads, reservation.n_cpus, asked.may_be_public)
        starting = [host.start.remote(*arguments) for host in hosts]
        places = [await_place(ray, each, "an RPC worker") for each in starting]
        self._hosts = hosts  # Ray ends actors without a reference
        self._places: dict[Any, EnginePlace] = {
            host.ended.remote(): place for host, place in zip(hosts, places, strict=True)
        }

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(place.endpoint for place in self._places.values())

    @property
    def nodes(self) -> str:
        return ", ".join(f"{place.node} ({place.endpoint})" for place in self._places.values())

    def wait_lost(self) -> str:
        """Wait until one is lost; returns which one and why."""
        (first, *_), _ = self._ray.wait(list(self._places), num_returns=1)
        place = self._places[first]
        try:
            reason: str = self._ray.get(first)
        except self._ray.exceptions.RayError as error:
            reason = reason_of(error)
        return f"the RPC worker {place.endpoint} on node {place.node} is lost: {reason}"
