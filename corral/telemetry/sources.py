"""What observers show in addition to records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from corral.core.modifier import AdapterInfo
    from corral.core.result import ModelInfo
    from corral.core.settings import Settings
    from corral.fleet.member import Member
    from corral.link.engine_state import EngineState
    from corral.telemetry.dispatcher import Telemetry


class EngineSource(Protocol):
    @property
    def state(self) -> EngineState: ...

    @property
    def info(self) -> ModelInfo | None: ...

    @property
    def n_restarts(self) -> int: ...

    @property
    def engines(self) -> Sequence[Member]:
        """Of several as one; else empty."""


class SessionSource(Protocol):
    @property
    def n_sessions(self) -> int: ...

    @property
    def resident_bytes(self) -> int: ...


class AdapterSource(Protocol):
    @property
    def info(self) -> AdapterInfo: ...

    @property
    def name(self) -> str: ...

    @property
    def scale(self) -> float: ...


@dataclass(frozen=True, slots=True)
class ServerSource:
    settings: Settings
    telemetry: Telemetry
    engine: EngineSource
    sessions: SessionSource
    adapters: Iterable[AdapterSource]
    detokenize: Callable[[list[int]], str]


def kv_use(server: ServerSource) -> tuple[int, int]:
    """Return the tokens in the KV cache, and its capacity."""
    info, settings = server.engine.info, server.settings
    if info is None:
        return 0, 0
    n_caches = settings.server.n_engines if settings.engine.kv_unified else info.n_slots
    capacity = info.n_ctx * n_caches
    return min(server.telemetry.slots.n_held, capacity), capacity
