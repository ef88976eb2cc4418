"""What the command line knows of an option."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from corral.core.settings import EngineSettings, ServerSettings


@dataclass(frozen=True, slots=True)
class Option:
    """`target` names a field of the settings, as `engine.n_ctx`, whose default and type count here too.

    Where that is a tuple, `parse` makes it of the words behind a name, of which there are `n_words` ("+":
    at least one); what `repeats` adds up. It raises ValueError.
    """

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
    parse: Callable[[list[str]], tuple[Any, ...]] | None = None
    n_words: int | str = 1
    repeats: bool = True

    @property
    def dest(self) -> str:
        return self.target.replace(".", "__")

    @property
    def default(self) -> Any:
        part, name = self.target.split(".")
        return getattr(EngineSettings(model="") if part == "engine" else ServerSettings(), name)
