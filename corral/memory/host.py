"""How much memory this process may still take: what the system has, and what limits allow.

Swap does not count. No native code.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

from corral.core.control_group import ROOT, memory_limits

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]


def available_bytes(root: Path = ROOT) -> int | None:
    """None: nobody knows."""
    groups = (max(0, limit - used) for limit, used in memory_limits(root))
    return min((*_system_bytes(), *groups), default=None)


def address_bytes() -> int | None:
    """What is left of the addresses that `ulimit -v` allows; none: as many as it likes."""
    if resource is None:
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    return max(0, limit - int(psutil.Process().memory_info().vms))


def _system_bytes() -> Iterator[int]:
    try:
        yield int(psutil.virtual_memory().available)
    except (OSError, RuntimeError):
        return
