"""What an engine and its RPC workers reserve in the cluster. All of them at once: two engines could otherwise
wait for each other's workers."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from typing import Any

from corral.core.errors import CorralError
from corral.fleet.ray.message import Asked, EnginePlace, decode_place
from corral.fleet.ray.node_share import cpus_each

PATIENCE_S = 30.0
_log = logging.getLogger("corral.engine")


@dataclass(frozen=True, slots=True)
class Reservation:
    """CPUs and GPUs of each process. `group`: a Ray placement group whose first bundle is the engine's; None
    without RPC workers."""

    n_cpus: int
    n_gpus: int
    group: Any = None

    def start(self, ray: Any, actor: type, kind: str, index: int = 0, **options: Any) -> Any:
        """Start an actor in the bundle `index`, on another node than the others if there is one."""
        strategy = "SPREAD" if self.group is None else _in_bundle(ray, self.group, index)
        name = f"corral-{kind}-{uuid.uuid4().hex[:6]}"  # several servers may use the cluster
        reserved = {"num_cpus": self.n_cpus, "num_gpus": self.n_gpus, "max_restarts": 0}
        return (
            ray.remote(actor).options(**reserved, **options, name=name, scheduling_strategy=strategy).remote()
        )


def reserve(ray: Any, asked: Asked, n_threads: int) -> Reservation:
    """Reserve what an engine needs; with RPC workers, once there is room for all. `n_threads`: 0: as many as
    there are CPUs for."""
    n_processes = 1 + asked.n_rpc_workers
    n_cpus = n_threads if n_threads > 0 else cpus_each(_node_cpus(ray), asked.n_engines * n_processes)
    if not asked.n_rpc_workers:
        return Reservation(n_cpus, asked.n_gpus)
    bundle = {"CPU": n_cpus, **({"GPU": asked.n_gpus} if asked.n_gpus else {})}
    group = ray.util.placement_group([bundle] * n_processes, strategy="SPREAD")
    while not group.wait(PATIENCE_S):
        fields = (n_processes, n_cpus, asked.n_gpus)
        _log.warning("waiting for nodes with room for %d processes with %d CPUs and %d GPUs each", *fields)
    return Reservation(n_cpus, asked.n_gpus, group)


def await_reservation(ray: Any, starting: Any, reservation: Reservation) -> None:
    """Wait until an engine has been placed, however long that takes."""
    while not ray.wait([starting], timeout=PATIENCE_S)[0]:
        _log.warning(
            "waiting for a node with %d free CPUs and %d GPUs for an engine",
            reservation.n_cpus,
            reservation.n_gpus,
        )


def await_place(ray: Any, starting: Any, what: str) -> EnginePlace:
    """Return where an actor runs. Raises CorralError if it does not, and says why."""
    try:
        place: EnginePlace = decode_place(ray.get(starting))
    except ray.exceptions.RayError as error:
        raise CorralError(f"{what} cannot start in the cluster: {reason_of(error)}") from None
    check_place(place, what)
    return place


class NodeRefused(CorralError):
    """A node cannot run a process, and says why: waiting does not help."""


def check_place(place: EnginePlace, what: str) -> None:
    """Raise NodeRefused if a node has refused to run something."""
    if place.refusal:
        raise NodeRefused(f"the node {place.node} cannot run {what}: {place.refusal}")


def reason_of(error: Exception) -> str:
    """Return the line of one of Ray's errors that says most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _in_bundle(ray: Any, group: Any, index: int) -> Any:
    return ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, index)


def _node_cpus(ray: Any) -> list[int]:
    return [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
