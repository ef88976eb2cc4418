"""A value that was given to an option, and where."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from corral.cli.options.option import Option
from corral.core.errors import CorralError


class UsageError(CorralError):
    """The command line, or what stands in for it, is wrong."""


class Source(enum.IntEnum):
    """Who wins over those before them."""

    FILE = 1
    ENVIRONMENT = 2
    COMMAND_LINE = 3


@dataclass(frozen=True, slots=True)
class Given:
    """`name` is what was written where the value was found, and `words` what followed it."""

    option: Option
    value: Any
    args: tuple[str, ...]
    source: Source
    name: str

    @property
    def text(self) -> str:
        """As it was said."""
        if self.option.secret:
            return f"{self.name} (not shown)"
        between = "=" if self.source is Source.ENVIRONMENT else " "
        return between.join((self.name, " ".join(self.args))) if self.args else self.name


def give(option: Option, args: tuple[str, ...], source: Source, name: str) -> Given:
    try:
        if not all(map(_is_text, args)):
            raise ValueError("what it is given is not UTF-8")
        return Given(option, option.read(args), args, source, name)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None


def _is_text(word: str) -> bool:
    """Not so where bytes of the command line, or of the environment, have no meaning as UTF-8."""
    return not any("\ud800" <= character <= "\udfff" for character in word)
