"""Read a TOML file of options, such as `ctx-size = 4096`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from corral.cli.given import Given, Source, UsageError, give
from corral.cli.hint import hint_for_key
from corral.cli.options import SETTINGS
from corral.cli.options.option import Option

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MODELS = "models"
_BY_KEY = {name.lstrip("-"): option for option in SETTINGS for name in option.names}


def read_config_file(path: str) -> tuple[list[Given], Any]:
    """Return the options, and the tables of `[models.NAME]`."""
    try:
        values = tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--config: cannot read {path}: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"--config: {path} is not valid TOML: {error}") from None
    tables = values.pop(MODELS, {})
    return [given for key, value in values.items() for given in _read(path, key, value)], tables


def _read(path: str, key: str, value: Any) -> list[Given]:
    option = _BY_KEY.get(key.replace("_", "-"))
    name = f"{path}: {key}"
    if option is None:
        raise UsageError(f"{name}: unknown option{hint_for_key(key, _BY_KEY)}")
    if value in (option.default, option.shown, []):
        return []  # the default, as --print-config writes it, is accepted even if it is outside the limits
    if isinstance(value, list) and isinstance(option.default, tuple) and option.n_args != 2:
        return [give(option, _args(option, name, item), Source.FILE, name) for item in value]
    return [give(option, _args(option, name, value), Source.FILE, name)]


def _args(option: Option, name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, bool):
        if not (isinstance(option.default, bool) or option.choices):
            raise UsageError(f"{name}: true and false are not allowed")
        return ("on" if value else "off",)
    if isinstance(value, list) and option.n_args == 2:
        return tuple(str(item) for item in value)
    if not isinstance(value, str | int | float):
        raise UsageError(f"{name}: a value of type {type(value).__name__} is not allowed")
    return option.split(str(value))
