"""LoRA adapters that are loaded and unloaded while requests run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from corral.core.errors import CorralError
from corral.core.modifier import AdapterConfig, AdapterInfo, ScaledFile
from corral.core.result import AdapterLoaded
from corral.core.task import Command, FreeAdapter, LoadAdapter
from corral.engine.ports import AdapterPort
from corral.engine.worker import Worker


class AdapterRegistry(Worker):
    """Mutable. An adapter to free stays while it is in one of the configurations `in_use`."""

    handles = (LoadAdapter, FreeAdapter)

    def __init__(self, port: AdapterPort, in_use: Callable[[], Iterable[AdapterConfig]]) -> None:
        self._port = port
        self._in_use = in_use
        self._leaving: set[int] = set()

    def handle(self, command: Command, _arrival: int) -> AdapterLoaded | None:
        if isinstance(command, LoadAdapter):
            return AdapterLoaded(command.id, self._port.load(command.adapter, command.path))
        assert isinstance(command, FreeAdapter)
        self._leaving.add(command.adapter)
        self._free()
        return None

    def cancel(self, _task_id: int) -> None:
        self._free()

    def end_step(self, _ms: float) -> None:
        self._free()

    def _free(self) -> None:
        if self._leaving:
            used = {id for config in self._in_use() for id, _ in config}
            for id in self._leaving - used:
                self._port.free(id)
            self._leaving &= used


def load_adapters(port: AdapterPort, files: Sequence[ScaledFile]) -> list[AdapterInfo]:
    """Load the adapters an engine starts with; those that cannot be loaded have an `error`."""
    return [_load(port, id, file.path) for id, file in enumerate(files) if file.path]


def _load(port: AdapterPort, id: int, path: str) -> AdapterInfo:
    try:
        return port.load(id, path)
    except CorralError as error:
        return AdapterInfo(id, path, error=error.message)
