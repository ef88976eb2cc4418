"""The recordings: a file for each group of cases, which people read and compare. Written once, never over."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.golden import cases
from tests.golden.case import Case

_FILES = Path(__file__).parent / "recorded"
_HEAD = re.compile(r"^=== (.*)\n", re.MULTILINE)


def modules() -> dict[str, Any]:
    """Return the modules with cases by the names of their groups."""
    found = {
        each.name: importlib.import_module(f"{cases.__name__}.{each.name}")
        for each in pkgutil.iter_modules(cases.__path__)
    }
    return {name: module for name, module in found.items() if hasattr(module, "CASES")}


def groups() -> dict[str, list[Case]]:
    return {name: module.CASES for name, module in modules().items()}


def path_of(group: str) -> Path:
    return _FILES / f"{group}.txt"


@cache
def recorded(group: str) -> dict[str, str]:
    """Return what is recorded of a group, by the names of its cases."""
    _, *parts = _HEAD.split(path_of(group).read_text("utf-8"))
    return dict(zip(parts[::2], parts[1::2], strict=True))


def write(group: str, texts: Sequence[tuple[str, str]]) -> None:
    """Raises FileExistsError: to record again, delete the file, and say in the changelog why."""
    with path_of(group).open("x", encoding="utf-8") as file:
        file.writelines(f"=== {name}\n{text}\n" for name, text in texts)
