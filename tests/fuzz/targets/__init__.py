"""The targets, one module each; a module is imported only for its own run."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

from tests.fuzz.target import Target

FOUND = Path(__file__).parents[1] / "found"


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def find_target(name: str) -> Target:
    target = importlib.import_module(f"{__name__}.{name}").TARGET
    assert isinstance(target, Target)
    assert target.name == name
    return target


def found_cases(name: str) -> list[bytes]:
    """Return the cases that broke a rule once."""
    return [path.read_bytes() for path in sorted((FOUND / name).glob("*.bin"))]
