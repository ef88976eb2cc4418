"""How much memory this process may still use: what the system has free, and what limits allow.

Swap does not count. No native code.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

from corral.core.control_group import ROOT, memory_limits

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


def available_bytes(root: Path = ROOT) -> int | None:
    """Return the free memory; None if unknown."""
    groups = (max(0, limit - used) for limit, used in memory_limits(root))
    return min((*_system_bytes(), *groups), default=None)


def address_bytes() -> int | None:
    """Return the rest of the address space that `ulimit -v` allows; None if unlimited."""
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
