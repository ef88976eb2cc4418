"""The commands of `corral`: what it can do instead of serving. `main` runs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """`arguments`: what may follow its name."""

    help: str
    arguments: str = ""


COMMANDS: Mapping[str, Command] = {
    "models": Command("list the downloaded models, or remove some", "[list | rm NAME ...]"),
    "doctor": Command("look for what keeps Corral from running"),
    "compare": Command("measure how far a model file is from another", "A.gguf B.gguf"),
    "tune": Command("find the fastest settings of a model on this machine", "[-m FILE]"),
    "completion": Command("print a script that completes options", "{bash,zsh,tcsh}"),
    "help": Command("print this, or the help of a command", "[COMMAND | all]"),
}
