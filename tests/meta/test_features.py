"""The tests of `make test` are those of the features that the table of features and the guides name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.features import FEATURES

ROOT = Path(__file__).parents[2]
VERDICT = "best at"  # a row of the table, and no feature


def test_every_feature_has_a_row():
    page = (ROOT / "docs" / "start" / "coming_from.md").read_text()
    table = page.partition("## Features compared\n")[2].partition("| --- |")[2].partition("\n\n")[0]
    rows = set(re.findall(r"^\| ([^|]+?) \|", table, re.M)) - {VERDICT}
    guides = {path.stem for path in (ROOT / "docs" / "howto").glob("*.md")}
    assert len(rows) > 5
    assert FEATURES.keys() == rows | guides


@pytest.mark.parametrize("name", FEATURES)
def test_the_tests_of_a_feature_exist(name):
    assert FEATURES[name]
    for test in FEATURES[name]:
        file, _, function = test.partition("::")
        assert re.search(rf"^(async )?def {function}", (ROOT / "tests" / file).read_text(), re.M), test
