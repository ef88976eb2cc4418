"""Options of one model: sections of `--models-preset`, an INI file, and `[models.NAME]` of `--config`."""

from __future__ import annotations

import configparser
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corral.cli.given import Given, Source, UsageError, give, read_switch
from corral.cli.hint import hint_for_key
from corral.cli.options import OPTIONS
from corral.cli.options.value import names

ALL = "*"
_MAX_NAME = 256
_TOP = "(top)"  # keys before the first section
_VERSIONS = ("", "1")
_BY_KEY = {name.lstrip("-"): option for option in OPTIONS for name in (*option.names, *option.variables)}
_NEGATIVE = {name.lstrip("-"): option for option in OPTIONS for name in option.negative}
# Options of the whole server, which a section cannot change.
_OF_SERVER = ("host", "port", "api_keys", "api_key_file", "ssl_key_file", "ssl_cert_file", "models_")


@dataclass(slots=True)
class Section:
    """What a file says about a model. The fields besides `given` are keys that no command line has."""

    name: str
    given: list[Given] = field(default_factory=list)
    pin: bool | None = None
    load_on_startup: bool | None = None
    groups: tuple[str, ...] | None = None
    allowed_keys: tuple[str, ...] = ()


def read_preset(path: str) -> list[Section]:
    """Read llama-server's form: `[*]` is for all models, keys are names of options without dashes."""
    parser = configparser.ConfigParser(
        interpolation=None, strict=False, delimiters=("=",), default_section=_TOP, empty_lines_in_values=False
    )
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    try:
        parser.read_string(f"[{_TOP}]\n" + Path(path).read_text("utf-8-sig"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--models-preset: cannot read {path}: {error}") from None
    except configparser.Error as error:
        raise UsageError(f"--models-preset: {path} is not valid: {error.message}") from None
    version = parser.defaults().get("version", "")
    parser.remove_option(_TOP, "version")
    if version not in _VERSIONS or parser.defaults():
        raise UsageError(f"--models-preset: {path}: only `version = 1` may precede the first section")
    return [make_section(path, name, parser.items(name)) for name in parser.sections()]


def make_section(path: str, name: str, pairs: Iterable[tuple[str, Any]]) -> Section:
    """Parse the keys of a section. Raises UsageError for an unknown key or an invalid value."""
    if not 0 < len(name) <= _MAX_NAME or not name.isprintable():
        raise UsageError(f"{path}: a model's name must have 1 to {_MAX_NAME} printable characters")
    section = Section(name)
    for key, value in pairs:
        _add(section, f"{path}: [{name}] {key}", key, value)
    return section


def read_tables(path: str, tables: Any) -> list[Section]:
    """Read the tables `[models.NAME]` of a TOML file."""
    if not isinstance(tables, Mapping) or not all(isinstance(each, Mapping) for each in tables.values()):
        raise UsageError(f"{path}: models: write one table for each model, such as [models.NAME]")
    return [make_section(path, name, table.items()) for name, table in tables.items()]


def _add(section: Section, label: str, key: str, value: Any) -> None:
    text = _text(label, value)
    match key.replace("_", "-"):
        case "pin":
            section.pin = read_switch(text, label)
        case "load-on-startup":
            section.load_on_startup = read_switch(text, label)
        case "allowed-keys":
            section.allowed_keys = names([text])
        case "group":
            section.groups = names([text])
        case "stop-timeout" | "dedup-cache-models":
            pass  # compat: --models-preset: an engine writes its caches and exits by itself
        case "ttl":
            section.given += _read(section.name, "sleep-idle-seconds", label, text)
        case name:
            section.given += _read(section.name, key if key in _BY_KEY else name, label, text)


def _read(section: str, key: str, label: str, text: str) -> list[Given]:
    source = Source.ALL_MODELS if section == ALL else Source.MODEL
    if (option := _NEGATIVE.get(key)) is not None:
        return [Given(option, not read_switch(text, label), (text,), source, label)]
    option = _BY_KEY.get(key)
    if option is None or option.command:
        raise UsageError(f"{label}: unknown option{hint_for_key(key, _BY_KEY)}")
    if option.target.partition(".")[2].startswith(_OF_SERVER):
        return []  # compat: --models-preset: llama-server ignores these in sections too
    if option.is_flag and not isinstance(option.default, bool):
        return [give(option, (), source, label)] if read_switch(text, label) else []
    return [give(option, option.split(text), source, label)]


def _text(label: str, value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    if not isinstance(value, str | int | float):
        raise UsageError(f"{label}: a value of type {type(value).__name__} is not allowed")
    return str(value)
