"""Retired habits stay out of the documents: each pattern, and what to write instead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATED = {
    f"docs/reference/{name}.md" for name in ("api", "options", "requests")
}  # from strings in the source
LATER = {"ARCHITECTURE.md", "docs/start/install.md", "docs/background/reliability.md"}
PAGES = [
    path
    for path in (
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "tools/endpoints.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
    )
    if str(path.relative_to(ROOT)) not in GENERATED | LATER
]
MAX_COLUMNS = 130

RETIRED = {  # patterns at the beginning of a word, and what to write instead
    r"so (many|much)\b(?! that)": "a number, or N",
    r"(no|some|every|any)body\b|who(m)?ever\b": "clients, users, or the process that is meant",
    r"(?<!there )(is|are|was|were) no (?!longer|larger|farther|more|less)": "is not a",
    r"behind\b(?! a proxy)": "after",
    r"beside\b": "besides, next to, compared with",
    r"told\b|tells? (you|it|what|how|which|where)\b": "reports, shows, lists",
    r"thoughts?\b": "reasoning",
    r"pictures?\b": "images",
    r"sounds?\b": "audio",
    r"mend(s|ed|ing)?\b": "fix",
    r"strangers?\b": "unauthenticated clients",
    r"(deaf|eyes|spoils?|rubbish|clumsy)\b": "the term of art",
    r"anew\b": "again",
    r"(goes?|went|going) on\b": "continue, happen",
    r"(otherwise than|others than|are others)\b": "differently, differ from",
    r"(given up|gives? up)\b": "fails, is abandoned",
    r"(has to have|to be had|can be had)\b": "needs, is available",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_retired_words_are_on_no_page(page):
    found = [
        f"{n}: '{match[0]}' ({instead}): {line.strip()}"
        for n, line in prose_lines(page.read_text())
        for pattern, instead in RETIRED.items()
        if (match := re.search(rf"\b(?:{pattern})", line, re.I))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_lines_can_be_read(page):
    """Except table rows, which cannot be wrapped, and `tools/endpoints.md`, which has one line per fact."""
    if page.name != "endpoints.md":
        long = [n for n, line in prose_lines(page.read_text(), code="") if len(line) > MAX_COLUMNS]
        assert not long, f"lines {long} are longer than {MAX_COLUMNS} columns"


@pytest.mark.parametrize(
    "text",
    [
        "only so many tokens",
        "Nobody waits",
        "this is no directory",
        "the tokens behind it",
        "it goes on later",
    ],
)
def test_a_pattern_finds(text):
    assert any(re.search(rf"\b(?:{pattern})", text, re.I) for pattern in RETIRED)


@pytest.mark.parametrize(
    "text", ["there is no slot", "it is no longer used", "behind a proxy", "so much that"]
)
def test_no_pattern_finds(text):
    assert not any(re.search(rf"\b(?:{pattern})", text, re.I) for pattern in RETIRED)


def prose_lines(text: str, code: str = r"`[^`]*`") -> list[tuple[int, str]]:
    """Numbered lines outside code blocks and tables' code, less what `code` matches."""
    lines, is_code = [], False
    for n, line in enumerate(text.splitlines(), 1):
        is_fence = line.lstrip().startswith("```")
        is_code ^= is_fence
        if not (is_code or is_fence or line.startswith("    ")):
            lines.append((n, re.sub(code, "", line) if code else line))
    return lines if code else [(n, line) for n, line in lines if not line.startswith("|")]
