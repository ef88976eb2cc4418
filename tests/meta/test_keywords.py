"""The page about structured output says what the table of keywords says, and limits as they are."""

from __future__ import annotations

import pytest

from corral.grammar import json_schema, keyword
from corral.grammar.gbnf import lark, parser
from tests.tools.schema_keywords import CHECKED, FORMATS, KEYWORDS, LIMITED, PAGE, tables


@pytest.mark.parametrize("name", tables())
def test_the_page_holds_the_table(name):
    _, _, rest = PAGE.read_text().partition(f"<!-- {name} -->\n")
    table, end, _ = rest.partition(f"<!-- /{name} -->")
    assert end
    assert table == tables()[name], "run: python -m tests.tools.schema_keywords"


def test_every_keyword_is_listed_once_and_matters_in_its_schema():
    for rows, table in ((KEYWORDS, keyword.KEYWORDS), (FORMATS, keyword.FORMATS)):
        names = [row.name for row in rows]
        assert len(names) == len(set(names))
        assert set(names) == set(table)
    for row in KEYWORDS:
        assert f"'{row.name}':" in str(row.schema), row.name
        assert (row.refused is not None) == (row.verdict in (CHECKED, LIMITED)), row.name


def test_the_page_names_the_limits():
    text = PAGE.read_text()
    for limit in (
        json_schema.MAX_DEPTH,
        json_schema.MAX_NODES,
        json_schema.MAX_PROPERTIES,
        parser.MAX_RULES,
        parser.MAX_DEPTH,
        parser.MAX_REPEAT,
        parser.MAX_REPEAT_PRODUCT,
        lark.MAX_RULE_DEPTH,
    ):
        assert f"{limit:,}" in text
