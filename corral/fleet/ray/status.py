"""What a Ray cluster has: its nodes, and the engines on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from corral.fleet.ray.join import NAMESPACE, join
from corral.fleet.ray.message import EnginePlace, decode_place

_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class Node:
    address: str
    name: str
    n_cpus: int
    n_gpus: int


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    nodes: list[Node]
    engines: list[EnginePlace]


def read_status(address: str) -> ClusterStatus:
    """Ask the cluster and its engines. Raises CorralError."""
    ray = join(address)
    try:
        return ClusterStatus([_node(each) for each in ray.nodes() if each["Alive"]], _engines(ray))
    finally:
        ray.shutdown()


def _node(facts: dict[str, Any]) -> Node:
    resources = facts["Resources"]
    n_cpus, n_gpus = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
    return Node(facts["NodeManagerAddress"], facts["NodeManagerHostname"], n_cpus, n_gpus)


def _engines(ray: Any) -> list[EnginePlace]:
    """Return those that answer; one may have ended meanwhile, or wait for a node."""
    named = ray.util.list_named_actors(all_namespaces=True)
    asked = []
    for each in named:
        if each["namespace"] == NAMESPACE:
            try:
                asked.append(ray.get_actor(each["name"], NAMESPACE).describe.remote())
            except ValueError:
                continue
    answered, _ = ray.wait(asked, num_returns=len(asked), timeout=_ANSWER_S) if asked else ([], [])
    return [place for ref in answered if (place := _place(ray, ref)) is not None]


def _place(ray: Any, ref: Any) -> EnginePlace | None:
    try:
        return decode_place(ray.get(ref))
    except ray.exceptions.RayError:
        return None
