"""Divide the CPUs of this machine between engines: physical cores, and NUMA nodes where there are several."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from corral.core.control_group import cpu_quota

_SYSTEM = Path("/sys/devices/system")


Core = tuple[int, ...]  # the CPUs of a physical core: its hyper-threads


def divide(nodes: Sequence[Sequence[Core]], n: int) -> list[tuple[Core, ...]]:
    """Return the cores of each of `n` engines. `nodes`: the cores of every NUMA node.

    An engine stays within a node where there are at least as many engines as nodes. Empty sets: there are
    fewer cores than engines.
    """
    cores = [core for node in nodes for core in node]
    if len(cores) < n:
        return [()] * n
    if len(nodes) > n or len(nodes) < 2:
        return _deal(cores, n)
    counts = [n // len(nodes) + (i < n % len(nodes)) for i in range(len(nodes))]
    if any(len(node) < count for node, count in zip(nodes, counts, strict=True)):
        return _deal(cores, n)
    return [part for node, count in zip(nodes, counts, strict=True) for part in _deal(node, count)]


def machine_nodes(root: Path = _SYSTEM) -> list[list[Core]]:
    """Return the physical cores that this process may use, by NUMA node; [] if unknown."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    allowed = os.sched_getaffinity(0)
    quota = cpu_quota()
    if quota is not None and quota < len(allowed):
        return []  # a share of time, not of CPUs
    folders = sorted(root.glob("node/node[0-9]*"), key=lambda path: int(path.name[4:]))
    nodes = [_cores(root, _parse(path / "cpulist") & allowed) for path in folders]
    return [node for node in nodes if node]


def physical_cores() -> int:
    """Return the physical cores that this process may use; hyper-threads would only wait for each other."""
    import psutil  # takes a while, and most processes do not ask

    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = math.ceil(cpu_quota() or allowed)
    return max(1, min(allowed, quota, psutil.cpu_count(logical=False) or allowed))


def _deal(cores: Sequence[Core], n: int) -> list[tuple[Core, ...]]:
    bounds = [len(cores) * i // n for i in range(n + 1)]
    return [tuple(cores[start:end]) for start, end in pairwise(bounds)]


def _cores(root: Path, cpus: set[int]) -> list[Core]:
    paths = (root / f"cpu/cpu{cpu}/topology/thread_siblings_list" for cpu in cpus)
    return sorted({tuple(sorted(_parse(path) & cpus)) for path in paths} - {()})


def _parse(path: Path) -> set[int]:
    """Read a list as `0-3,8`."""
    cpus: set[int] = set()
    with contextlib.suppress(OSError, ValueError):
        for part in path.read_text().strip().split(","):
            first, _, last = part.partition("-")
            cpus.update(range(int(first), int(last or first) + 1))
    return cpus
