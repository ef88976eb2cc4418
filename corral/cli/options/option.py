"""What the command line knows of an option."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from corral.core.settings import EngineSettings, ServerSettings


@dataclass(frozen=True, slots=True)
class Option:
    """`target` names a field of the settings, as `engine.n_ctx`, whose default and type count here too."""

    names: tuple[str, ...]
    target: str
    help: str
    metavar: str = ""
    env: str = ""
    negative: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    bare: str | None = None  # the value when the name stands alone

    @property
    def dest(self) -> str:
        return self.target.replace(".", "__")

    @property
    def default(self) -> Any:
        part, name = self.target.split(".")
        return getattr(EngineSettings(model="") if part == "engine" else ServerSettings(), name)
