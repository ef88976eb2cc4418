"""What observers show besides records. `api.service.Service` has all of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from corral.core.modifier import AdapterInfo
from corral.core.result import ModelInfo
from corral.core.settings import Settings
from corral.link.lifecycle import EngineState
from corral.telemetry.dispatcher import Telemetry


class EngineFacts(Protocol):
    @property
    def state(self) -> EngineState: ...

    @property
    def info(self) -> ModelInfo | None: ...

    @property
    def n_restarts(self) -> int: ...


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


class Detokenizer(Protocol):
    def detokenize(self, tokens: list[int]) -> str: ...


class ServerFacts(Protocol):
    @property
    def settings(self) -> Settings: ...

    @property
    def telemetry(self) -> Telemetry: ...

    @property
    def engine(self) -> EngineFacts: ...

    @property
    def sessions(self) -> SessionFacts: ...

    @property
    def adapters(self) -> Iterable[AdapterFacts]: ...

    @property
    def vocab(self) -> Detokenizer: ...


def kv_use(facts: ServerFacts) -> tuple[int, int]:
    return facts.telemetry.slots.kv_use(facts.engine.info, facts.settings.engine.kv_unified)
