"""A value given to an option, and its source."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from corral.cli.options.option import Option, is_on
from corral.core.errors import CorralError


class UsageError(CorralError):
    """The command line, the environment or the configuration file is invalid."""


class Source(enum.IntEnum):
    """Sources of options; a later one overrides an earlier one."""

    FILE = 1
    ENVIRONMENT = 2
    ALL_MODELS = 3  # the section `[*]` of --models-preset
    MODEL = 4  # the section of a model
    COMMAND_LINE = 5


@dataclass(frozen=True, slots=True)
class Given:
    """A value of an option. `name`: as it was written in the source; `args`: the words that followed it."""

    option: Option
    value: Any
    args: tuple[str, ...]
    source: Source
    name: str

    @property
    def text(self) -> str:
        """Return the option as it was written, without secrets."""
        if self.option.secret:
            return f"{self.name} (not shown)"
        between = "=" if self.source is Source.ENVIRONMENT else " "
        return between.join((self.name, " ".join(self.args))) if self.args else self.name


def give(option: Option, args: tuple[str, ...], source: Source, name: str) -> Given:
    try:
        _check_text(*args)
        return Given(option, option.read(args), args, source, name)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None


def read_switch(text: str, name: str) -> bool:
    """Parse `on`, `off` and their other spellings."""
    try:
        _check_text(text)
        return is_on(text)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None


def _check_text(*words: str) -> None:
    """Raise unless all bytes of command-line or environment strings were valid UTF-8."""
    if any("\ud800" <= character <= "\udfff" for word in words for character in word):
        raise ValueError("the value is not UTF-8")
