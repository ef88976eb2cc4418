"""LoRA adapters that come and go while requests run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from corral.core.errors import CorralError
from corral.core.modifier import AdapterConfig, AdapterInfo, ScaledFile
from corral.core.result import AdapterLoaded, Event, Failed
from corral.core.task import FreeAdapter, LoadAdapter
from corral.engine.ports import AdapterPort


class AdapterRegistry:
    """Mutable: carries out orders about adapters; one that is to go stays for as long as it is in use."""

    def __init__(self, port: AdapterPort) -> None:
        self._port = port
        self._leaving: set[int] = set()

    @property
    def is_waiting(self) -> bool:
        """Some are to go."""
        return bool(self._leaving)

    def handle(self, command: LoadAdapter | FreeAdapter) -> list[Event]:
        if isinstance(command, FreeAdapter):
            self._leaving.add(command.adapter)
            return []
        try:
            return [AdapterLoaded(command.id, self._port.load(command.adapter, command.path))]
        except CorralError as error:
            return [Failed(command.id, error.info())]

    def tidy(self, in_use: Iterable[AdapterConfig]) -> None:
        """Free what is to go and in no configuration that is still in use."""
        used = {id for config in in_use for id, _ in config}
        for id in self._leaving - used:
            self._port.free(id)
        self._leaving &= used


def load_adapters(port: AdapterPort, files: Sequence[ScaledFile]) -> list[AdapterInfo]:
    """Those that an engine begins with; what cannot be loaded says why."""
    return [_load(port, id, file.path) for id, file in enumerate(files) if file.path]


def _load(port: AdapterPort, id: int, path: str) -> AdapterInfo:
    try:
        return port.load(id, path)
    except CorralError as error:
        return AdapterInfo(id, path, error=error.message)
