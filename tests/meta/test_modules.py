"""Tests share helpers through modules of their own."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
OF_TEST_MODULE = re.compile(
    r"^\s*(?:from|import) tests\b(?:[\w.]*\.test_|[\w.]* import (?:\(\s*)?.*\btest_).*", re.M
)


def test_no_test_module_is_imported_by_another():
    assert OF_TEST_MODULE.search("from tests.unit.test_engine import task")
    assert OF_TEST_MODULE.search("from tests.unit import test_engine")
    found = {path.name: OF_TEST_MODULE.findall(path.read_text()) for path in TESTS.rglob("*.py")}
    assert len(found) > 100
    assert not {name: lines for name, lines in found.items() if lines and name != Path(__file__).name}
