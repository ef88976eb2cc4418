"""Every promise of the security model names tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "bench" / "promises.md"
TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


@cache
def names_in(name: str) -> frozenset[str]:
    path = ROOT / "tests" / name
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = ast.walk(ast.parse(path.read_text())) if path.exists() else ()
    return frozenset(node.name for node in found if isinstance(node, functions))


def promises() -> list[str]:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][2:]
    return [row for row in rows if not re.fullmatch(r"\| \*\*[^|]+\*\* \|\s+\|", row)]


def test_every_promise_names_a_test_and_every_test_exists():
    assert len(promises()) > 30
    for promise in promises():
        named = TEST.findall(promise)
        assert named, promise
        for name, test in named:
            assert test in names_in(name), f"{name}::{test}"
