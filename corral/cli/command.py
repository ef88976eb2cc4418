"""The subcommands of `corral`, which run instead of the server. `main` runs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """`arguments`: usage text of the arguments after the name."""

    help: str
    arguments: str = ""


COMMANDS: Mapping[str, Command] = {
    "models": Command(
        "list or remove downloaded models, or list those of a server", "[list | rm NAME ... | --server URL]"
    ),
    "doctor": Command("check this installation and machine for problems"),
    "tune": Command("find the fastest settings for a model on this machine", "[-m FILE]"),
    "batch": Command("run the requests in a file and save the results", "INPUT.jsonl -o OUTPUT.jsonl"),
    "cluster": Command(
        "start, stop or show a Ray cluster for --ray", "up [--join HOST:PORT] | down | status [HOST:PORT]"
    ),
    "rpc-worker": Command(
        "offer this machine's devices to a server with --rpc",
        "[--host ADDRESS] [--port N] [--device NAME,...]",
    ),
    "completion": Command("print a shell completion script", "{bash,zsh,tcsh}"),
    "help": Command("print this help, or that of a command", "[COMMAND | all]"),
}
