"""Read values of options from environment variables."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from corral.cli.given import Given, Source, give, read_switch
from corral.cli.options import OPTIONS
from corral.cli.options.option import PREFIX, Option


def read_environment(environ: Mapping[str, str]) -> list[Given]:
    named = {_BY_NAME[name].long_name for name in environ if name in _BY_NAME}
    given = (_find(option, environ) for option in OPTIONS if option.long_name in named)
    return [value for value in given if value is not None]


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Warn about each variable that has the prefix of options but sets none."""
    unknown = sorted(name for name in environ if name.startswith(PREFIX) and name not in _BY_NAME)
    return [f"{name} is ignored: unknown option{_hint(name)}" for name in unknown]


def _hint(name: str) -> str:
    """Suggest a similar variable; the common prefix is left out of the comparison."""
    near = difflib.get_close_matches(name.removeprefix(PREFIX), _BY_ENDING, 1)
    return f"; did you mean {_BY_ENDING[near[0]]}?" if near else ""


def _opposites(option: Option) -> list[str]:
    # compat: llama-server: LLAMA_ARG_NO_MMAP, whatever its value.
    return [name.replace(PREFIX, f"{PREFIX}NO_") for name in option.variables] if option.negative else []


def _find(option: Option, environ: Mapping[str, str]) -> Given | None:
    for name in option.variables:
        if name in environ:
            return _read(option, name, environ[name])
    for name in _opposites(option):
        if name in environ:
            return Given(option, False, (environ[name],), Source.ENVIRONMENT, name)
    return None


def _read(option: Option, name: str, text: str) -> Given | None:
    if option.is_flag and not isinstance(option.default, bool):
        is_given = read_switch(text, name)
        return Given(option, option.read(()), (text,), Source.ENVIRONMENT, name) if is_given else None
    return give(option, option.split(text), Source.ENVIRONMENT, name)


_BY_NAME = {name: option for option in OPTIONS for name in (*option.variables, *_opposites(option))}
_BY_ENDING = {name.removeprefix(PREFIX): name for name in _BY_NAME}
