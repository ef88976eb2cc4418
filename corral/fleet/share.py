"""The share of the machine that each of several engines gets.

What counts per engine stays as it is: slots, context, threads that the user has named. What belongs to the
machine is divided: physical cores, host memory for states, the directory of `--cache-disk`, and the devices
that `--device` names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from corral.core.cpu_set import Core, divide, machine_nodes, physical_cores
from corral.core.settings import EngineSettings

replace = msgspec.structs.replace
ShareOut = Callable[[EngineSettings, int], Sequence[EngineSettings]]


def machine_shares(settings: EngineSettings, n: int) -> list[EngineSettings]:
    """Return the settings of `n` engines on this machine."""
    n_cores, cores = physical_cores(), divide(machine_nodes(), n)
    return [share_of(settings, index, n, cores[index], n_cores) for index in range(n)]


def share_of(
    settings: EngineSettings, index: int, n: int, cores: Sequence[Core], n_cores: int
) -> EngineSettings:
    """Return the settings of one engine of `n`. `cores`: those of its own, if there are enough; `n_cores`:
    of the machine."""
    disk, lookup = settings.cache_disk, settings.lookup_cache_dynamic
    return replace(
        settings,
        cache_ram_mib=settings.cache_ram_mib // n if settings.cache_ram_mib > 0 else settings.cache_ram_mib,
        cache_disk=str(Path(disk, f"engine-{index}")) if disk else "",
        cache_disk_gib=settings.cache_disk_gib / n,
        lookup_cache_dynamic=f"{lookup}.{index}" if lookup and index else lookup,
        devices=_deal(settings.devices, index, n),
        reports_states=True,
        n_alike=n,
        n_on_device=-(-n // max(1, len(settings.devices))),
        **_threads(settings, cores, max(1, n_cores // n)),
    )


def like_first(first: EngineSettings, mine: EngineSettings) -> EngineSettings:
    """Return the settings of an engine that loads what the first one has found to be best and to fit."""
    return replace(
        first,
        cache_disk=mine.cache_disk,
        lookup_cache_dynamic=mine.lookup_cache_dynamic,
        devices=mine.devices,
        cpus=mine.cpus,
        n_threads=mine.n_threads,
    )


def needs_of_all(needs: Mapping[str, int], devices: Sequence[Sequence[str]]) -> dict[str, int]:
    """Return the bytes that engines need on all devices. `needs`: on those of the first one, and on the host,
    for all that use them; `devices`: of each engine."""
    first, *others = devices
    theirs = {
        other: needs[own] for each in others for own, other in zip(first, each, strict=False) if own in needs
    }
    return {**theirs, **needs}


def _threads(settings: EngineSettings, cores: Sequence[Core], n_each: int) -> dict[str, object]:
    if settings.n_threads > 0:
        return {}
    if not cores or settings.numa:
        return {"n_threads": n_each}
    return {"n_threads": len(cores), "cpus": tuple(sorted(cpu for core in cores for cpu in core))}


def _deal(devices: tuple[str, ...], index: int, n: int) -> tuple[str, ...]:
    """Return the devices of one engine: neighbouring ones, or one that others use too."""
    if not devices:
        return ()
    if len(devices) < n:
        return (devices[index % len(devices)],)
    return devices[len(devices) * index // n : len(devices) * (index + 1) // n]
