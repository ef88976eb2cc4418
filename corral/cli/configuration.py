"""All that was given, from files, the environment and the command line, as settings."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from corral.cli.arguments import read_arguments
from corral.cli.config_file import read_config_file
from corral.cli.environment import read_environment, unknown_variables
from corral.cli.given import Given
from corral.core.settings import EngineSettings, Settings

_VERBOSE = 4


@dataclass(frozen=True, slots=True)
class Configuration:
    """`given` is what counts, by target; `notes` are for the person who gave it."""

    settings: Settings
    given: Mapping[str, Sequence[Given]]
    notes: Sequence[str]
    command: str  # to do instead of serving, with the word that follows it; "" to serve

    @property
    def counted(self) -> list[Given]:
        """What the settings are made of."""
        return [given for values in self.given.values() for given in _counted(values)]


def configure(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> Configuration:
    """Raises UsageError."""
    said = read_arguments(argv)
    around = read_environment(environ)
    path = next((given.value for given in reversed(around + said) if given.option.command == "config"), "")
    every = [*(read_config_file(path) if path else ()), *around, *said]
    given = _winners(every)
    commands = [
        f"{given.option.command} {given.value or ''}".strip()
        for given in said
        if given.option.command not in ("", "config")
    ]
    return Configuration(
        settings=_settings({target: _sum(values) for target, values in given.items()}),
        given=given,
        notes=[*_unused(every), *_overridden(around, said), *unknown_variables(environ)],
        command=commands[0] if commands else "",
    )


def _winners(every: Iterable[Given]) -> dict[str, list[Given]]:
    """What is given for each target by the source that wins, which may have said it several times."""
    winners: dict[str, list[Given]] = {}
    for given in every:
        if given.option.is_used and not given.option.command:
            before = winners.setdefault(given.option.target, [])
            if before and before[0].source < given.source:
                before.clear()
            before.append(given)
    return winners


def _sum(values: Sequence[Given]) -> Any:
    last = values[-1]
    if _adds_up(last):
        return tuple(item for given in values for item in given.value)
    return last.value


def _counted(values: Sequence[Given]) -> Sequence[Given]:
    """The last one, or all of them."""
    return values if _adds_up(values[-1]) else values[-1:]


def _adds_up(given: Given) -> bool:
    return given.option.repeats and isinstance(given.value, tuple)


def _unused(every: Iterable[Given]) -> list[str]:
    names = dict.fromkeys(given.name for given in every if not given.option.is_used)
    return [f"{name} is ignored: it is accepted for compatibility, and has no effect" for name in names]


def _overridden(around: Sequence[Given], said: Sequence[Given]) -> list[str]:
    """One line for each target that the environment wanted otherwise."""
    spoken = _winners(said)
    return [
        f"{spoken[target][-1].text} wins over {values[-1].text} in the environment"
        for target, values in _winners(around).items()
        if target in spoken and _sum(spoken[target]) != _sum(values)
    ]


def _settings(values: Mapping[str, Any]) -> Settings:
    parts: dict[str, dict[str, Any]] = {"engine": {}, "server": {}, "sampling": {}}
    for target, value in values.items():
        part, name = target.split(".")
        parts[part][name] = value
    default = Settings(engine=EngineSettings(model=""))
    parts["engine"]["verbose"] = parts["server"].get("verbosity", 0) >= _VERBOSE
    replace = msgspec.structs.replace
    return Settings(**{part: replace(getattr(default, part), **own) for part, own in parts.items()})
