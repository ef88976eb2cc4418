"""Parse the command line into values of options."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence

from corral.cli.command import COMMANDS
from corral.cli.given import Given, Source, UsageError, give
from corral.cli.hint import hint_for_option, hint_for_word
from corral.cli.options import OPTIONS
from corral.cli.options.option import Option

_BY_NAME = {name: option for option in OPTIONS for name in (*option.names, *option.negative)}
_NUMBER = re.compile(r"-?\.?\d.*")


def read_arguments(argv: Sequence[str]) -> list[Given]:
    """Return the given options in order. A value may begin with a dash if the option requires a value."""
    args, given = deque(argv), []
    while args:
        name, equals, value = _split(args.popleft())
        option = _BY_NAME.get(name)
        if option is None:
            raise UsageError(_unknown(name, args))
        if equals:
            args.appendleft(value)
        if name in option.negative:
            given.append(Given(option, False, (), Source.COMMAND_LINE, name))
        else:
            given.append(give(option, _take(option, name, args, bool(equals)), Source.COMMAND_LINE, name))
        if equals and args and args[0] is value:
            raise UsageError(f"{name} does not take a value")
    return given


def _split(word: str) -> tuple[str, str, str]:
    """Split `--ctx-size=4096` into name, `=` and value."""
    if not word.startswith("--"):
        return word, "", ""
    name, equals, value = word.partition("=")
    return name.replace("_", "-"), equals, value  # compat: llama-server: --ctx_size is --ctx-size


def _take(option: Option, name: str, args: deque[str], is_one: bool) -> tuple[str, ...]:
    if option.is_flag:
        return ()
    if is_one:
        return (args.popleft(),)
    if option.bare is not None:
        return (args.popleft(),) if args and not _is_name(args[0]) else ()
    if option.n_args == "+":
        taken = [args.popleft()] if args else []
        while args and not _is_name(args[0]):
            taken.append(args.popleft())
    else:
        taken = [args.popleft() for _ in range(min(int(option.n_args), len(args)))]
    if not taken or (option.n_args != "+" and len(taken) < int(option.n_args)):
        raise UsageError(f"{name} requires a value: {name} {option.metavar}")
    return tuple(taken)


def _is_name(word: str) -> bool:
    return word.startswith("-") and not _NUMBER.fullmatch(word)


def _unknown(name: str, following: Sequence[str]) -> str:
    if name.startswith("-"):
        return f"unknown option '{name}'; {hint_for_option(name, _BY_NAME)}"
    return f"'{name}' is neither an option nor a command; {hint_for_word(name, following, COMMANDS)}"
