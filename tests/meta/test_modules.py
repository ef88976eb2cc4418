"""Tests share helpers through modules of their own."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]


def imported_modules(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update((node.module, *(f"{node.module}.{alias.name}" for alias in node.names)))
    return names


def test_no_test_module_is_imported_by_another():
    tests = {
        ".".join(("tests", *path.relative_to(TESTS).with_suffix("").parts))
        for path in TESTS.rglob("test_*.py")
    }
    assert len(tests) > 100
    importers = {path.name: sorted(tests & imported_modules(path)) for path in TESTS.rglob("*.py")}
    assert {name: modules for name, modules in importers.items() if modules} == {}
