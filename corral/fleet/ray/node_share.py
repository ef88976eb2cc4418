"""What an engine gets of its node: pure functions of settings and numbers of CPUs.

Engines on different machines share nothing but the paths of files: only the CPUs of a node are divided.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from corral.core.cpu_set import physical_cores
from corral.core.settings import EngineSettings
from corral.core.transcoding import OFF

replace = msgspec.structs.replace


def shares_on_nodes(settings: EngineSettings, n: int) -> list[EngineSettings]:
    """Return the settings of `n` engines, each on any node."""
    return [_share(settings, index) for index in range(n)]


def cpus_each(nodes: Sequence[int], n: int) -> int:
    """Return the most CPUs, at least 1, that each of `n` engines can have on nodes with these CPUs."""
    fits = (each for each in range(max(nodes, default=1), 1, -1) if sum(node // each for node in nodes) >= n)
    return next(fits, 1)


def with_threads(settings: EngineSettings, n_cpus: int) -> EngineSettings:
    """Return the settings with threads for the physical cores of `n_cpus` CPUs of this node."""
    return settings if settings.n_threads > 0 else replace(settings, n_threads=threads_of(n_cpus))


def threads_of(n_cpus: int) -> int:
    """Return the number of physical cores that `n_cpus` CPUs of this node are."""
    n_cores = physical_cores()
    return min(n_cores, max(1, n_cpus * n_cores // (os.cpu_count() or n_cores)))


def missing_files(settings: EngineSettings) -> list[str]:
    """Return the files of an engine that do not exist on this node."""
    named = (settings.model, settings.mmproj, settings.model_draft, settings.lookup_cache_static)
    scaled = (file.path for file in (*settings.lora, *settings.control_vectors))
    return [path for path in (*named, *scaled) if path and not Path(path).exists()]


def _share(settings: EngineSettings, index: int) -> EngineSettings:
    disk, lookup = settings.cache_disk, settings.lookup_cache_dynamic
    return replace(
        settings,
        cache_disk=str(Path(disk, f"engine-{index}")) if disk else "",
        lookup_cache_dynamic=f"{lookup}.{index}" if lookup and index else lookup,
        transcode=OFF,  # a file that one node writes does not exist on the others
        reports_states=True,
    )
