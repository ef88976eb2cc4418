"""Merge configuration file, environment and command line into settings."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from corral.cli.arguments import read_arguments
from corral.cli.config_file import read_config_file
from corral.cli.environment import read_environment, unknown_variables
from corral.cli.given import Given, UsageError
from corral.cli.model_section import Section, read_tables
from corral.core.settings import EngineSettings, Settings

_MAX_PORT = 65535
_VERBOSE = 4


@dataclass(frozen=True, slots=True)
class Configuration:
    """`given`: the values of the winning source, by target. `notes`: warnings for the user."""

    settings: Settings
    given: Mapping[str, Sequence[Given]]
    notes: Sequence[str]
    command: str  # the command option and its argument, which run instead of the server; "" to serve
    every: Sequence[Given] = ()  # of all sources, the weakest first
    sections: Sequence[Section] = ()  # of the configuration file, one for each model

    @property
    def counted(self) -> list[Given]:
        """Return the values that the settings are built from."""
        return [given for values in self.given.values() for given in _counted(values)]


def configure(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> Configuration:
    """Merge all sources; the command line wins over the environment, which wins over the file. Raises
    UsageError."""
    said = read_arguments(argv)
    around = read_environment(environ)
    path = next((given.value for given in reversed(around + said) if given.option.command == "config"), "")
    written, tables = read_config_file(path) if path else ([], {})
    every = [*written, *around, *said]
    given = _winners(every)
    commands = [
        f"{given.option.command} {given.value or ''}".strip()
        for given in said
        if given.option.command not in ("", "config")
    ]
    return Configuration(
        settings=merge(every) if "server.port" in given else _at_vertex(merge(every), environ),
        given=given,
        notes=[*_noted(every), *_overridden(around, said), *unknown_variables(environ)],
        command=commands[0] if commands else "",
        every=every,
        sections=read_tables(path, tables),
    )


def merge(every: Iterable[Given]) -> Settings:
    """Return the settings of all values, of which the strongest source wins."""
    return _settings({target: _sum(values) for target, values in _winners(every).items()})


def _winners(every: Iterable[Given]) -> dict[str, list[Given]]:
    """Return the values of the winning source for each target. One source may set a target several times."""
    winners: dict[str, list[Given]] = {}
    for given in every:
        if given.option.is_used and not given.option.command:
            before = winners.setdefault(given.option.target, [])
            if before and before[0].source < given.source:
                before.clear()
            if not before or before[0].source == given.source:
                before.append(given)
    return winners


def _sum(values: Sequence[Given]) -> Any:
    last = values[-1]
    if _adds_up(last):
        return tuple(item for given in values for item in given.value)
    return last.value


def _counted(values: Sequence[Given]) -> Sequence[Given]:
    """Return all values of an option that accumulates, otherwise only the last."""
    return values if _adds_up(values[-1]) else values[-1:]


def _adds_up(given: Given) -> bool:
    return given.option.repeats and isinstance(given.value, tuple)


def _noted(every: Iterable[Given]) -> list[str]:
    """Return a note for each option that has no effect, or not all of it."""
    notes = {given.name: given.option.note for given in every if not given.option.is_used}
    used = {given.name: given.option.note for given in every if given.option.is_used and given.option.note}
    return [
        *(f"{name} is ignored: {note}" for name, note in notes.items()),
        *(f"{name}: {note}" for name, note in used.items()),
    ]


def _overridden(around: Sequence[Given], said: Sequence[Given]) -> list[str]:
    """Return a note for each target that the command line sets to a different value than the environment."""
    spoken = _winners(said)
    return [
        f"{spoken[target][-1].text} overrides {values[-1].text} from the environment"
        for target, values in _winners(around).items()
        if target in spoken and _sum(spoken[target]) != _sum(values)
    ]


def _at_vertex(settings: Settings, environ: Mapping[str, str]) -> Settings:
    """Listen where Vertex AI asks for it, as llama-server does, unless an option says where."""
    if environ.get("AIP_MODE") != "PREDICTION":
        return settings
    port = environ.get("AIP_HTTP_PORT") or "8080"
    if not port.isdecimal() or int(port) > _MAX_PORT:
        raise UsageError(f"AIP_HTTP_PORT: '{port:.20}' is not a port")
    server = msgspec.structs.replace(settings.server, port=int(port))
    return msgspec.structs.replace(settings, server=server)


def _settings(values: Mapping[str, Any]) -> Settings:
    parts: dict[str, dict[str, Any]] = {"engine": {}, "server": {}, "sampling": {}}
    for target, value in values.items():
        part, name = target.split(".")
        parts[part][name] = value
    default = Settings(engine=EngineSettings(model=""))
    parts["engine"]["verbose"] = parts["server"].get("verbosity", 0) >= _VERBOSE
    replace = msgspec.structs.replace
    return Settings(**{part: replace(getattr(default, part), **own) for part, own in parts.items()})
