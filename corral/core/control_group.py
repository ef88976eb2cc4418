"""What the control groups of Linux, and with them containers, allow this process: memory and CPU time.

Both versions of them; no native code. The files it reads can be elsewhere, for tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path("/")
_GROUPS = "sys/fs/cgroup"
_NO_LIMIT = 1 << 60  # what older ones say instead is about 2**63
_RECLAIMED = ("inactive_file", "active_file", "slab_reclaimable")  # as soon as somebody needs it


def memory_limits(root: Path = ROOT) -> Iterator[tuple[int, int]]:
    """The limit of each group that this process is in, in bytes, and what of it is used for good."""
    for folder, is_old in _folders(root, "memory"):
        limit, usage = ("limit_in_bytes", "usage_in_bytes") if is_old else ("max", "current")
        try:
            n_limit = int((folder / f"memory.{limit}").read_text())
            n_used = int((folder / f"memory.{usage}").read_text())
            counts = _counts((folder / "memory.stat").read_text())
        except (OSError, ValueError):  # `max` is no number
            continue
        if n_limit < _NO_LIMIT:
            prefix = "total_" if is_old else ""
            yield n_limit, n_used - sum(counts.get(prefix + name, 0) for name in _RECLAIMED)


def cpu_quota(root: Path = ROOT) -> float | None:
    """How many CPUs may be used at the same time, on average; none: all there are."""
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
    """Those of the groups, from the innermost out, and whether they are of the older kind."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        is_old = controller in controllers.split(",")
        if is_old or not controllers:
            base = root / _GROUPS / (controller if is_old else "")
            # Inside a container only the innermost may be there, as the base.
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
