"""An option of the command line, and how arguments are converted to its value."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from corral.core.params import SamplingParams
from corral.core.sampling_params import PARAMS, option_names
from corral.core.settings import EngineSettings, ServerSettings

PREFIX = "LLAMA_ARG_"
_PARTS = {"engine": EngineSettings(model=""), "server": ServerSettings(), "sampling": SamplingParams()}
_TARGETS = {
    field: f"{part}.{field}" for part in ("engine", "server") for field in _PARTS[part].__struct_fields__
}
_BY_NAME = "*"
_COMMAND = "command."
_MOST = 2**31 - 1  # the maximum of a number without stated limits
_ON, _OFF = ("1", "true", "on", "yes", "enabled"), ("0", "false", "off", "no", "disabled")
_SWITCHES = {**dict.fromkeys(_ON, "on"), **dict.fromkeys(_OFF, "off"), "-1": "auto"}  # compat: llama-server


class PathUse(enum.Enum):
    """How the server uses a file or directory that an option names."""

    TEXT = enum.auto()  # reads text
    DATA = enum.auto()  # reads a file of any format
    GGUF = enum.auto()
    OUTPUT = enum.auto()  # writes a file, creating it if missing
    READ_DIRECTORY = enum.auto()
    WRITE_DIRECTORY = enum.auto()
    OWN_DIRECTORY = enum.auto()  # writes there, creating it if missing

    @property
    def is_directory(self) -> bool:
        return self in (PathUse.READ_DIRECTORY, PathUse.WRITE_DIRECTORY, PathUse.OWN_DIRECTORY)


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the option table.

    `target`: the setting it sets, such as `engine.n_ctx`; by default the one with its name. `command.help`
    runs a command instead of serving. Options that are ignored or refused have no target. Type and default
    are those of the setting.

    The name is followed by `n_args` arguments ("+": at least one). Without arguments the value is `bare`.
    `parse` converts them to anything but a string or a number. Values of an option that `repeats`
    accumulate. `path`: the value names files or a directory of this machine, which are checked before the
    model is loaded.
    """

    names: tuple[str, ...]
    help: str = ""
    metavar: str = ""
    target: str = _BY_NAME
    env: str = ""  # in addition to the variable derived from its name
    negative: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    limits: tuple[float | None, float | None] = (None, None)
    bare: Any = None
    parse: Callable[[list[str]], Any] | None = None
    n_args: int | str = 1
    repeats: bool = True
    secret: bool = False
    shown: Any = None  # shown in place of the default
    path: PathUse | None = None
    note: str = ""  # why an option has no effect, or not all of it
    refusal: str = ""  # why it cannot be honoured

    def __post_init__(self) -> None:
        if self.target == _BY_NAME:
            object.__setattr__(self, "target", _TARGETS[self.key.replace("-", "_")])
        if not self.metavar:
            object.__setattr__(self, "metavar", self._usual_metavar())

    def _usual_metavar(self) -> str:
        if self.path is not None:
            return "PATH" if self.path.is_directory else "FNAME"
        is_number = isinstance(self.default, int | float) and not isinstance(self.default, bool)
        return "N" if is_number and self.n_args else "|".join(self.choices)

    @property
    def low(self) -> float | None:
        return self.limits[0]

    @property
    def high(self) -> float | None:
        return self.limits[1]

    @property
    def long_name(self) -> str:
        return self.names[-1]

    @property
    def key(self) -> str:
        """The key in a configuration file."""
        return self.long_name.removeprefix("--")

    @property
    def variables(self) -> tuple[str, ...]:
        """Environment variables; the first wins."""
        if self.command and (self.is_flag or self.bare is not None):
            return ()
        derived = PREFIX + self.key.upper().replace("-", "_")
        return (self.env, derived) if self.env and self.env != derived else (derived,)

    @property
    def is_used(self) -> bool:
        return bool(self.target)

    @property
    def command(self) -> str:
        return self.target.removeprefix(_COMMAND) if self.target.startswith(_COMMAND) else ""

    @property
    def is_flag(self) -> bool:
        """Whether the option takes no value."""
        return self.n_args == 0 or isinstance(self.default, bool) or (bool(self.command) and not self.metavar)

    @property
    def default(self) -> Any:
        part, _, name = self.target.partition(".")
        return getattr(_PARTS[part], name) if part in _PARTS else ""

    @property
    def default_text(self) -> str:
        """The default as text for users; empty if there is none."""
        default = self.default if self.shown is None else self.shown
        if default in ("", (), (0, 0)) or self.command or self.n_args == 0:
            return ""
        if isinstance(default, bool):
            return "on" if default else "off"
        return " ".join(repr(item) for item in default) if isinstance(default, tuple) else str(default)

    def split(self, text: str) -> tuple[str, ...]:
        """Return the arguments in a text, such as that of an environment variable."""
        return tuple(text.split()) if self.n_args in (2, "+") else (text,)

    def read(self, args: Sequence[str]) -> Any:
        """Convert arguments to the value. Raises ValueError with the reason."""
        if self.refusal:
            raise ValueError(self.refusal)
        if not args:
            return True if isinstance(self.default, bool) else self.bare
        if self.parse is not None:
            return self.parse(list(args))
        if self.choices:
            return self._choose(args[0])
        value = _convert(type(self.default), args[0])
        if isinstance(value, int | float):
            self._check_limits(value)
        return value

    def _choose(self, word: str) -> str:
        """Return the matching choice in any case. If on and off are choices, all spellings of flags match
        too."""
        switch = _SWITCHES.get(word.lower(), "")
        for choice in (word, word.lower(), switch):
            if choice in self.choices:
                return choice
        if self.bare is not None and switch in ("on", "off"):
            return str(self.bare if switch == "on" else self.default)
        raise ValueError(f"'{word}' is not one of {', '.join(self.choices)}")

    def _check_limits(self, value: float) -> None:
        low = -_MOST if self.low is None else self.low
        high = _MOST if self.high is None else self.high
        if not low <= value <= high:
            raise ValueError(f"{value} is out of range, it must be between {low:,.10g} and {high:,.10g}")


def param_option(name: str, metavar: str = "N", **more: Any) -> Option:
    """Return the option that sets the server's default of a sampling parameter."""
    row = PARAMS[name]
    values = {
        "help": row.help[0].lower() + row.help[1:].rstrip("."),
        "limits": row.clamp or row.limits,
        **more,
    }
    return Option(option_names(name), metavar=metavar, target=row.setting or f"sampling.{name}", **values)


def is_on(word: str) -> bool:
    if word.lower() not in _ON + _OFF:
        raise ValueError(f"'{word}' is not on or off")
    return word.lower() in _ON


def _convert(kind: type, word: str) -> Any:
    if kind is bool:
        return is_on(word)
    if kind is str:
        return word
    try:
        return kind(word)
    except ValueError:
        what = "an integer" if kind is int else "a number"
        raise ValueError(f"'{word}' is not {what}") from None
