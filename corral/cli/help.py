"""The option table as an argparse parser, for `corral help` and `corral completion`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import shtab

from corral.cli.command import COMMANDS
from corral.cli.given import UsageError
from corral.cli.options import GROUPS
from corral.cli.options.option import Option

_SHELLS = ("bash", "zsh", "tcsh")
_USAGE_WIDTH = 37


def run_help(args: Sequence[str]) -> int:
    sys.stdout.write(build_parser(is_full="all" in args).format_help())
    return 0


def run_completion(args: Sequence[str]) -> int:
    """Print a script that completes options, and file names where an option takes a file."""
    usage = f"corral completion {{{','.join(_SHELLS)}}}: print a shell completion script"
    if len(args) == 1 and args[0] in ("-h", "--help"):
        sys.stdout.write(f"usage: {usage}\n")
        return 0
    if len(args) != 1 or args[0] not in _SHELLS:
        raise UsageError(usage)
    sys.stdout.write(shtab.complete(build_parser(is_full=True), shell=args[0]))
    return 0


def build_parser(is_full: bool = False) -> argparse.ArgumentParser:
    """Build the parser. `is_full`: include options that have no effect."""
    parser = argparse.ArgumentParser(
        prog="corral",
        usage=_usage(),
        description="llama-server in Python: an HTTP server for large language models, on libllama",
        epilog="Each option can be set by an environment variable, such as LLAMA_ARG_CTX_SIZE for "
        "--ctx-size, and in a file (--config). The command line overrides the environment, "
        "which overrides the file. --help all also lists the options that are accepted for "
        "compatibility and ignored.",
        add_help=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=44, width=118),
    )
    commands = parser.add_argument_group("commands")
    commands.add_argument("command", nargs="?", choices=list(COMMANDS), help="commands, instead of serving")
    for group in GROUPS:
        options = [option for option in group.options if option.is_used or is_full]
        if options:
            section = parser.add_argument_group(group.title, group.about or None)
            for option in options:
                _add(section, option)
    return parser


def _usage() -> str:
    lines = [("corral [options]", "serve a model")]
    lines += [(f"corral {name} {command.arguments}", command.help) for name, command in COMMANDS.items()]
    return "\n       ".join(_usage_line(words, help) for words, help in lines)


def _usage_line(words: str, help: str) -> str:
    """The help begins in its column: on the next line, if the words leave no room for it."""
    if len(words) < _USAGE_WIDTH:
        return f"{words:{_USAGE_WIDTH}}{help}"
    return f"{words}\n{'':{len('usage: ') + _USAGE_WIDTH}}{help}"


def _add(section: argparse._ArgumentGroup, option: Option) -> None:
    names = (*option.names, *option.negative)
    help = _help(option).replace("%", "%%")
    if option.is_flag:
        section.add_argument(*names, action="store_true", help=help)
        return
    action = section.add_argument(
        *names,
        metavar=tuple(option.metavar.split()) if option.n_args == 2 else option.metavar,
        choices=option.choices or None,
        nargs="?" if option.bare is not None else option.n_args if option.n_args != 1 else None,
        help=help,
    )
    if option.path is not None:
        action.complete = shtab.DIRECTORY if option.path.is_directory else shtab.FILE  # type: ignore[attr-defined]


def _help(option: Option) -> str:
    if option.refusal:
        return f"refused: {option.refusal}"
    if not option.is_used:
        return f"ignored: {option.note}"
    if not option.default_text or "default:" in option.help:
        return option.help
    return f"{option.help} (default: {option.default_text})"
