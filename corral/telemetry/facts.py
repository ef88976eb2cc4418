"""What observers show in addition to records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from corral.core.modifier import AdapterInfo
from corral.core.result import ModelInfo
from corral.core.settings import Settings
from corral.link.lifecycle import EngineState
from corral.telemetry.dispatcher import Telemetry

if TYPE_CHECKING:
    from corral.link.member import Member


class EngineFacts(Protocol):
    @property
    def state(self) -> EngineState: ...

    @property
    def info(self) -> ModelInfo | None: ...

    @property
    def n_restarts(self) -> int: ...


@runtime_checkable
class FleetFacts(EngineFacts, Protocol):
    """Of a server with several engines."""

    @property
    def engines(self) -> Sequence[Member]: ...


class SessionFacts(Protocol):
    @property
    def n_sessions(self) -> int: ...

    @property
    def resident_bytes(self) -> int: ...


class AdapterFacts(Protocol):
    @property
    def info(self) -> AdapterInfo: ...

    @property
    def name(self) -> str: ...

    @property
    def scale(self) -> float: ...


@dataclass(frozen=True, slots=True)
class ServerFacts:
    settings: Settings
    telemetry: Telemetry
    engine: EngineFacts
    sessions: SessionFacts
    adapters: Iterable[AdapterFacts]
    detokenize: Callable[[list[int]], str]


def kv_use(facts: ServerFacts) -> tuple[int, int]:
    """Return the tokens in the KV cache, and its capacity."""
    info, settings = facts.engine.info, facts.settings
    if info is None:
        return 0, 0
    n_caches = settings.server.n_engines if settings.engine.kv_unified else info.n_slots
    capacity = info.n_ctx * n_caches
    return min(facts.telemetry.slots.n_held, capacity), capacity
