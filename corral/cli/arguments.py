"""From the option table to settings: argparse, environment, limits, and a hint for a mistyped name."""

from __future__ import annotations

import argparse
import difflib
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from corral import __version__
from corral.cli.options import GROUPS, OPTIONS
from corral.cli.options.option import Option
from corral.core.settings import EngineSettings, ServerSettings, Settings


def parse_options(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> Settings:
    """Settings from defaults, then the environment, then the command line."""
    parser = build_parser()
    values: dict[str, Any] = {}
    for option in OPTIONS:
        if option.env and option.env in environ:
            values[option.target] = _from_environment(parser, option, environ[option.env])
    given, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.error(_suggest(unknown[0]))
    values |= {target.replace("__", "."): value for target, value in vars(given).items()}
    for option in OPTIONS:
        if option.target in values:
            _check_limits(parser, option, values[option.target])
    return _settings(values)


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="corral",
        description="llama-server in Python: an HTTP server for large language models on libllama",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=44, width=118),
    )
    parser.add_argument("--version", action="version", version=f"corral {__version__}")
    for title, options in GROUPS.items():
        group = parser.add_argument_group(title)
        for option in options:
            _add(group, option)
    return parser


def _add(group: argparse._ArgumentGroup, option: Option) -> None:
    default = option.default
    if isinstance(default, bool):
        state = "on" if default else "off"
        group.add_argument(
            *option.names, dest=option.dest, action="store_true", help=f"{option.help} (default: {state})"
        )
        if option.negative:
            group.add_argument(
                *option.negative, dest=option.dest, action="store_false", help=argparse.SUPPRESS
            )
        return
    if option.parse is not None:
        group.add_argument(
            *option.names,
            dest=option.dest,
            action=_Words,
            option=option,
            nargs=option.n_words,
            metavar=tuple(option.metavar.split()) if option.n_words == 2 else option.metavar,
            help=option.help.replace("%", "%%"),
        )
        return
    help = (
        option.help if default == "" or "default:" in option.help else f"{option.help} (default: {default:})"
    )
    group.add_argument(
        *option.names,
        dest=option.dest,
        type=type(default),
        metavar=option.metavar,
        choices=option.choices or None,
        nargs=None if option.bare is None else "?",
        const=option.bare,
        help=help.replace("%", "%%"),
    )


def _from_environment(parser: argparse.ArgumentParser, option: Option, text: str) -> Any:
    default = option.default
    if isinstance(default, bool):
        return text.lower() in ("1", "true", "on", "yes", "enabled")
    try:
        value = option.parse(text.split()) if option.parse else type(default)(text)
    except ValueError:
        parser.error(f"{option.env}: invalid value '{text}'")
    if option.choices and value not in option.choices:
        parser.error(f"{option.env}: '{text}' is not one of {', '.join(option.choices)}")
    return value


def _check_limits(parser: argparse.ArgumentParser, option: Option, value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        parser.error(f"{option.names[-1]}: {value} is not allowed")
    too_low = option.low is not None and value < option.low
    if too_low or (option.high is not None and value > option.high):
        low, high = option.low, option.high
        allowed = f"at least {low:g}" if high is None else f"between {low:g} and {high:g}"
        parser.error(f"{option.names[-1]}: {value} is not allowed, it must be {allowed}")


def _suggest(unknown: str) -> str:
    names = [name for option in OPTIONS for name in (*option.names, *option.negative)]
    near = difflib.get_close_matches(unknown.split("=")[0], names, 1)
    return f"unknown option '{unknown}'" + (f"; did you mean '{near[0]}'?" if near else "")


def _settings(values: Mapping[str, Any]) -> Settings:
    parts: dict[str, dict[str, Any]] = {"engine": {"model": ""}, "server": {}}
    for target, value in values.items():
        part, name = target.split(".")
        parts[part][name] = value
    return Settings(
        engine=msgspec.structs.replace(EngineSettings(model=""), **parts["engine"]),
        server=msgspec.structs.replace(ServerSettings(), **parts["server"]),
    )


class _Words(argparse.Action):
    """Makes values of the words behind a name, and adds them to earlier ones."""

    def __init__(self, option: Option, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._option = option

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        assert self._option.parse is not None
        try:
            found = self._option.parse(values)
        except ValueError as error:
            parser.error(f"{option_string}: {error}")
        before = getattr(namespace, self.dest, ()) if self._option.repeats else ()
        setattr(namespace, self.dest, (*before, *found))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"corral: {message}\n")
