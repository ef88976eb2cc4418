"""Memory and CPU limits of Linux control groups, and thereby of containers.

Supports both versions; no native code. Tests can pass another root.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path("/")
_GROUPS = "sys/fs/cgroup"
_NO_LIMIT = 1 << 60  # cgroup v1 uses about 2**63 for unlimited
_RECLAIMED = ("inactive_file", "active_file", "slab_reclaimable")  # freed by the kernel on demand


def memory_limits(root: Path = ROOT) -> Iterator[tuple[int, int]]:
    """Yield the limit of each group of this process in bytes, and how much of it is used and not
    reclaimable."""
    for folder, is_old in _folders(root, "memory"):
        limit, usage = ("limit_in_bytes", "usage_in_bytes") if is_old else ("max", "current")
        try:
            n_limit = int((folder / f"memory.{limit}").read_text())
            n_used = int((folder / f"memory.{usage}").read_text())
            counts = _counts((folder / "memory.stat").read_text())
        except (OSError, ValueError):  # `max` is not a number
            continue
        if n_limit < _NO_LIMIT:
            prefix = "total_" if is_old else ""
            yield n_limit, n_used - sum(counts.get(prefix + name, 0) for name in _RECLAIMED)


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return how many CPUs may be used at the same time, on average; None if unlimited."""
    quotas = []
    for folder, is_old in _folders(root, "cpu"):
        try:
            if is_old:
                quota, period = ((folder / f"cpu.cfs_{n}_us").read_text() for n in ("quota", "period"))
            else:
                quota, period = (folder / "cpu.max").read_text().split()
            quotas.append(int(quota) / int(period))
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return min((n for n in quotas if n > 0), default=None)


def _folders(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield the directories of the groups, innermost first, and whether they are version 1."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        is_old = controller in controllers.split(",")
        if is_old or not controllers:
            base = root / _GROUPS / (controller if is_old else "")
            # Inside a container only the innermost may exist, as the base.
            for folder in dict.fromkeys((*_upwards(base, group), base)):
                yield folder, is_old


def _upwards(base: Path, group: str) -> Iterator[Path]:
    folder = base / group.strip("/")
    while base in folder.parents:
        yield folder
        folder = folder.parent


def _counts(text: str) -> Mapping[str, int]:
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}
