"""LoRA adapters as clients see them: ids, names and default scales.

The engine gets a configuration with every task; only this module knows the server's defaults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from corral.core.errors import Conflict, CorralError, InvalidRequest, NotFound, NotSupported
from corral.core.modifier import AdapterConfig, AdapterInfo, ScaledFile
from corral.generate.engine import Engine
from corral.schema.nested import MAX_SCALE
from corral.storage.save_directory import check_name

MAX_ADAPTERS = 256
_SUFFIX = ".gguf"


@dataclass(frozen=True, slots=True)
class Adapter:
    info: AdapterInfo
    name: str
    scale: float


class AdapterStore:
    """The loaded adapters."""

    def __init__(self, engine: Engine, directory: str) -> None:
        self._engine = engine
        self._directory = Path(directory) if directory else None
        if self._directory is not None and not self._directory.is_dir():
            raise CorralError(f"--lora-dir: '{directory}' is not a directory")
        self._adapters: dict[int, Adapter] = {}
        self._loading = asyncio.Lock()

    def __iter__(self) -> Iterator[Adapter]:
        return iter(self._adapters.values())

    @property
    def ids(self) -> frozenset[int]:
        return frozenset(self._adapters)

    @property
    def config(self) -> AdapterConfig:
        """Return the scales for requests that set none."""
        return make_config({id: adapter.scale for id, adapter in self._adapters.items()})

    def open(self, infos: Sequence[AdapterInfo], files: Sequence[ScaledFile], applies: bool) -> None:
        """Add the adapters of the command line; raises if the engine could not load one."""
        for info in infos:
            if info.error:
                raise CorralError(f"--lora {info.path}: {info.error}")
            scale = files[info.id].scale if applies else 0.0
            self._adapters[info.id] = Adapter(info, Path(info.path).stem, scale)

    def set(self, scales: Mapping[int, float]) -> None:
        """Set the scales; adapters that are not listed are turned off."""
        self._adapters = {
            id: replace(adapter, scale=scales.get(id, 0.0)) for id, adapter in self._adapters.items()
        }

    async def load(self, name: str, scale: float) -> Adapter:
        """Load a file of `--lora-dir` while the server runs."""
        path = self._find(name)
        async with self._loading:
            if any(adapter.name == path.stem for adapter in self._adapters.values()):
                raise Conflict(f"an adapter named '{path.stem}' is already loaded")
            if len(self._adapters) >= MAX_ADAPTERS:
                raise Conflict(f"{MAX_ADAPTERS} adapters are loaded, which is the limit; unload one first")
            info = await self._engine.load_adapter(str(path))
            self._adapters[info.id] = Adapter(info, path.stem, scale)
            return self._adapters[info.id]

    def unload(self, name: str | int) -> Adapter:
        """Unload an adapter; requests that use it finish first."""
        names = {name, name.removesuffix(_SUFFIX)} if isinstance(name, str) else {name}
        for id, adapter in self._adapters.items():
            if names & {id, adapter.name}:
                self._engine.free_adapter(id)
                return self._adapters.pop(id)
        raise NotFound(f"adapter {name!r:.140} does not exist")

    def _find(self, name: str) -> Path:
        if self._directory is None:
            raise NotSupported("This server does not support loading adapters. Start it with `--lora-dir`")
        file = check_name(name, "name").removesuffix(_SUFFIX) + _SUFFIX
        path = self._directory / file
        if path.is_symlink() or not path.is_file():
            raise NotFound(f"adapter '{file}' is not in --lora-dir")
        return path


def parse_scales(given: Any, ids: Iterable[int], field: str) -> dict[int, float]:
    """Parse `[{"id": 0, "scale": 0.5}, ...]`."""
    if not isinstance(given, list):
        raise InvalidRequest('must be a list of {"id": N, "scale": X}', field=field)
    if len(given) > MAX_ADAPTERS:
        raise InvalidRequest(f"has more than {MAX_ADAPTERS} adapters", field=field)
    known = set(ids)
    return dict(_parse_scale(item, known, field) for item in given)


def make_config(scales: Mapping[int, float]) -> AdapterConfig:
    return tuple((id, scale) for id, scale in sorted(scales.items()) if scale != 0)


def _parse_scale(item: Any, known: set[int], field: str) -> tuple[int, float]:
    if not isinstance(item, dict):
        raise InvalidRequest('must contain objects {"id": N, "scale": X}', field=field)
    id, scale = item.get("id"), item.get("scale")
    if isinstance(id, bool) or not isinstance(id, int) or id not in known:
        there = ", ".join(map(str, sorted(known))) or "none"
        raise InvalidRequest(f"adapter {id!r:.40} does not exist; available ids: {there}", field=field)
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not abs(scale) <= MAX_SCALE:
        given = "missing" if "scale" not in item else f"got {scale!r:.40}"
        raise InvalidRequest(
            f"the scale of adapter {id} must be a number from -{MAX_SCALE:g} to {MAX_SCALE:g}: {given}",
            field=field,
        )
    return id, float(scale)
