"""Print every option with its value and source, as a file that `--config` reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from corral.cli.configuration import Configuration
from corral.cli.given import Given, Source
from corral.cli.options import GROUPS, SETTINGS
from corral.cli.options.option import Option

_PLACES = {
    Source.FILE: "{name}",
    Source.ENVIRONMENT: "{name} in the environment",
    Source.COMMAND_LINE: "{name} on the command line",
}
_WIDTH = 40
# Some settings have several options; the last one accepts any value.
_MAIN = {option.target: option for option in SETTINGS}


def render_config(configuration: Configuration) -> str:
    lines = ["# Every option of corral, its value and its origin."]
    for group in GROUPS:
        shown = [
            _line(option, given)
            for option in group.options
            if option.target in _MAIN and (given := _own(option, configuration)) is not None
        ]
        lines += ["", f"# {group.title}", *shown] if shown else []
    return "\n".join(lines) + "\n"


def _own(option: Option, configuration: Configuration) -> Sequence[Given] | None:
    """Return the values to print under this option: those given with it if they accumulate, otherwise the
    last one under the target's main option."""
    given = configuration.given.get(option.target, ())
    if given and option.repeats and isinstance(given[-1].value, tuple):
        return [value for value in given if value.option is option] or None
    return given[-1:] if _MAIN[option.target] is option else None


def _line(option: Option, given: Sequence[Given]) -> str:
    origin = ", ".join(dict.fromkeys(_PLACES[value.source].format(name=value.name) for value in given))
    if option.secret and given:
        return f"# {option.key} is not shown  # {origin}"
    return f"{f'{option.key} = {_value(option, given)}':{_WIDTH}}  # {origin or 'default'}"


def _value(option: Option, given: Sequence[Given]) -> str:
    if not given:
        return _toml(option.default if option.shown is None else option.shown)
    value = given[-1].value
    if not isinstance(value, tuple):
        return _toml(value)
    if option.n_args == 2:
        return _toml(given[-1].args)
    if given[-1].option is not option:
        return _toml(";".join(value))
    return _toml([" ".join(one.args) for one in given])


def _toml(value: Any) -> str:
    if value == (0, 0):
        value = ()
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
