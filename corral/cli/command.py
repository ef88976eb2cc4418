"""What `corral` does instead of serving, by the first word of its command line.

What a command needs is imported where it is run: the others do not wait for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from corral.cli.given import UsageError

_HELP = ("-h", "--help")


@dataclass(frozen=True, slots=True)
class Command:
    """`arguments` is what may follow its name."""

    run: Callable[[Sequence[str]], int]
    help: str
    arguments: str = ""


def run_models(args: Sequence[str]) -> int:
    from corral.cli import model_cache

    return model_cache.run_models(args)


def run_doctor(args: Sequence[str]) -> int:
    from corral.cli import doctor

    return doctor.run_doctor(args)


def run_tune(args: Sequence[str]) -> int:
    from corral.cli import tune

    return tune.run_tune(args)


def run_compare(args: Sequence[str]) -> int:
    from corral.cli import compare

    return compare.run_compare(args)


def run_completion(args: Sequence[str]) -> int:
    """Print a script for a shell."""
    from corral.cli.help import SHELLS, completion

    usage = f"corral completion {{{','.join(SHELLS)}}}: prints a script that completes options"
    if len(args) == 1 and args[0] in _HELP:
        sys.stdout.write(f"usage: {usage}\n")
        return 0
    if len(args) != 1 or args[0] not in SHELLS:
        raise UsageError(usage)
    sys.stdout.write(completion(args[0]))
    return 0


def run_help(args: Sequence[str]) -> int:
    """Print what there is, or what one of the commands says of itself."""
    from corral.cli.help import ALL, build_parser

    if args and args[0] in COMMANDS and args[0] != "help":
        return COMMANDS[args[0]].run(["--help"])
    sys.stdout.write(build_parser(is_full=ALL in args).format_help())
    return 0


COMMANDS: Mapping[str, Command] = {
    "models": Command(run_models, "list the downloaded models, or remove some", "[list | rm NAME ...]"),
    "doctor": Command(run_doctor, "look for what keeps Corral from running"),
    "compare": Command(run_compare, "measure how far a model file is from another", "A.gguf B.gguf"),
    "tune": Command(run_tune, "find the fastest settings of a model on this machine", "[-m FILE]"),
    "completion": Command(run_completion, "print a script that completes options", "{bash,zsh,tcsh}"),
    "help": Command(run_help, "print this, or the help of a command", "[COMMAND | all]"),
}
