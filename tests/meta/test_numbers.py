"""Measurements that pages quote are those of one file, which are those of the log."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ENTRIES: dict[str, dict[str, str]] = tomllib.loads((ROOT / "bench" / "numbers.toml").read_text())
NUMBERS = {name: value for numbers in ENTRIES.values() for name, value in numbers.items()}
QUOTE = re.compile(r"([\d.,/]+)\**<!-- number: ([\w-]+) -->")
MARK = "<!-- number: "
SPEED = re.compile(r"\d (?:x\b|tokens/s\b|times (?:as|faster|slower|sooner)\b).*")


def test_names_are_used_once():
    assert len(NUMBERS) == sum(map(len, ENTRIES.values()))


@pytest.mark.parametrize("title", ENTRIES)
def test_values_are_in_their_entry_of_the_log(title):
    log = (ROOT / "bench" / "measurements.md").read_text()
    _, heading, entry = log.partition(f"\n## {title}\n")
    assert heading
    measured = re.findall(r"[\d.,/]*\d", entry.partition("\n## ")[0])
    assert not set(ENTRIES[title].values()) - set(measured)


def test_pages_quote_the_numbers_by_their_names():
    quotes = [quote for page in PAGES for quote in QUOTE.findall(page.read_text())]
    assert len(quotes) == sum(page.read_text().count(MARK) for page in PAGES)
    assert {name for _, name in quotes} == NUMBERS.keys()
    for value, name in quotes:
        assert value == NUMBERS[name], name


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_speed_on_a_page_has_a_name(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    assert not SPEED.findall(text), "add it to bench/numbers.toml and quote it by its name"
