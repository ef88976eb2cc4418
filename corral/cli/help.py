"""The option table as argparse knows it, for `--help` and for completion in shells."""

from __future__ import annotations

import argparse

import shtab

from corral.cli.command import COMMANDS
from corral.cli.options import GROUPS
from corral.cli.options.option import Option

SHELLS = ("bash", "zsh", "tcsh")
_FILES = ("FNAME", "FILE", "PATH")
_USAGE = """corral [options]
       corral models [rm NAME ...]
       corral doctor
       corral compare A.gguf B.gguf
       corral completion {bash,zsh,tcsh}"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="corral",
        usage=_USAGE,
        description="llama-server in Python: an HTTP server for large language models on libllama",
        epilog="Each option has an environment variable, as LLAMA_ARG_CTX_SIZE of --ctx-size, and may be in "
        "a file (--config). The command line wins over the environment, and that over the file.",
        add_help=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=44, width=118),
    )
    commands = parser.add_argument_group("commands")
    commands.add_argument("command", nargs="?", choices=list(COMMANDS), help="what to do instead of serving")
    for group in GROUPS:
        section = parser.add_argument_group(group.title, group.about or None)
        for option in group.options:
            _add(section, option)
    return parser


def completion(shell: str) -> str:
    """A script that completes options; where a file is expected, names of files."""
    return str(shtab.complete(build_parser(), shell=shell))


def _add(section: argparse._ArgumentGroup, option: Option) -> None:
    names = (*option.names, *option.negative)
    help = _help(option).replace("%", "%%")
    if option.is_flag:
        section.add_argument(*names, action="store_true", help=help)
        return
    action = section.add_argument(
        *names,
        metavar=tuple(option.metavar.split()) if option.n_words == 2 else option.metavar,
        choices=option.choices or None,
        nargs="?" if option.bare is not None else option.n_words if option.n_words != 1 else None,
        help=help,
    )
    if option.metavar in _FILES:
        action.complete = shtab.DIRECTORY if option.metavar == "PATH" else shtab.FILE  # type: ignore[attr-defined]


def _help(option: Option) -> str:
    if not option.is_used:
        return f"{option.help} (of no use to a server)"
    if not option.default_text or "default:" in option.help:
        return option.help
    return f"{option.help} (default: {option.default_text})"
