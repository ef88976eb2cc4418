"""Retired habits stay out of documents, messages and remarks: each pattern, and what to write instead."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.meta.statement import statements

ROOT = Path(__file__).parents[2]
GENERATED = {
    f"docs/reference/{name}.md" for name in ("api", "options", "requests")
}  # from strings in the source
PAGES = [
    path
    for path in (
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "tools/endpoints.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
    )
    if str(path.relative_to(ROOT)) not in GENERATED
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
RETIRED_IN_MESSAGES = {  # in strings of the source that users read
    r"so (many|much)\b(?! (that|as))": "a number, or N",
    r"(no|some|every)body\b|who(m)?ever\b": "clients, users, or the process that is meant",
    r"(this|it) (is|was) no (?!longer|more|less)": "is not a",
    r"whose they are\b|none of this model's\b|speaks? of\b": "name the thing",
    r"thoughts?\b": "reasoning",
    r"pictures?\b": "images",
    r"sounds?\b": "audio",
    r"anew\b": "again",
    r"with some room beside|beside it there\b": "besides, next to",
    r"at most are\b|are the most\b": "the limit is N",
    r"forbids to\b": "forbids doing",
    r"can name another\b": "set it to another",
    r"(going|goes?) on (in|after|from)\b": "resume, retry, continue",
    r"(leads? nowhere|broken off|cut short)\b": "the term of art",
}
RETIRED_IN_REMARKS = {  # in docstrings and comments, in addition to those of pages
    **RETIRED,
    r"(becomes?|became) of\b": "happens to, results in",
    r"(is|are) none (of|that|which)\b": "is not one of",
    r"looked after\b": "checked, handled",
    r"(is|are|to) blame\b": "is at fault, is invalid",
    r"in vain\b": "without result",
    r"insists?\b": "requires",
    r"(halves|half) of (a )?surrogate": "lone surrogate",
    r"where need be\b|if need be\b": "if necessary",
    r"a moment to import\b|takes a while to import\b": "slow import",
    r"(more|less|fewer) than there (is|are)\b": "more than exist",
}
ALLOWED: set[tuple[str, str]] = set()  # path, and the words in small letters that are right there
PACKAGES = sorted(
    path.name for path in (ROOT / "corral").iterdir() if path.is_dir() and path.name != "_native"
)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_retired_words_are_on_no_page(page):
    assert_none(page, prose_lines(page.read_text()), RETIRED)


def test_retired_words_are_in_no_message():
    for path in sorted((ROOT / "corral").rglob("*.py")):
        assert_none(path, messages(ast.parse(path.read_text())), RETIRED_IN_MESSAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_retired_words_are_in_no_docstring_or_comment(package):
    for path in sorted((ROOT / "corral" / package).rglob("*.py")):
        assert_none(path, remarks(path.read_text()), RETIRED_IN_REMARKS)


def test_retired_words_are_in_no_script_of_a_page():
    folder = ROOT / "corral" / "webui"
    for path in sorted(path for kind in ("js", "html") for path in folder.rglob(f"*.{kind}")):
        if "vendor" not in path.parts:
            assert_none(path, enumerate(path.read_text().splitlines(), 1), RETIRED_IN_REMARKS)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_lines_can_be_read(page):
    """Except table rows, `tools/endpoints.md` (a line per fact) and `ARCHITECTURE.md` (150 lines at most)."""
    if page.name not in ("endpoints.md", "ARCHITECTURE.md"):
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


@pytest.mark.parametrize(
    "source", ['"""It is told how."""', "x = 1  # nobody waits", "def f():\n    # in vain\n    ..."]
)
def test_a_pattern_finds_in_a_remark(source):
    with pytest.raises(AssertionError):
        assert_none(ROOT / "x.py", remarks(source), RETIRED_IN_REMARKS)


def assert_none(path: Path, lines: Iterable[tuple[int, str]], patterns: Mapping[str, str]) -> None:
    name = str(path.relative_to(ROOT))
    any_of = _any_of(tuple(patterns))
    found = [
        f"{name}:{n}: '{match[0]}' ({instead}): {text.strip()[:80]}"
        for n, text in lines
        if any_of.search(text)
        for pattern, instead in patterns.items()
        if (match := re.search(rf"\b(?:{pattern})", text, re.I)) and (name, match[0].lower()) not in ALLOWED
    ]
    assert not found, "\n".join(found)


@cache
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(patterns)})", re.I)


def remarks(source: str) -> Iterator[tuple[int, str]]:
    """Docstrings and comments, less the code in them."""
    tree = ast.parse(source)
    for node in (tree, *statements(tree)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if text := ast.get_docstring(node):
            yield node.body[0].lineno, re.sub(r"`[^`]*`", "", " ".join(text.split()))
    if not any(_any_of(tuple(RETIRED_IN_REMARKS)).search(text) for text in _after_number_signs(source)):
        return  # to find the tokens takes longer than all else
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], re.sub(r"`[^`]*`", "", token.string)


def _after_number_signs(source: str) -> Iterator[str]:
    """Comments and more, with the code in them and without."""
    for line in source.splitlines():
        if "#" in line:
            text = line[line.index("#") :]
            yield from (text, re.sub(r"`[^`]*`", "", text))


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Strings with several words that are not docstrings."""
    docstrings = {
        id(node.value)
        for node in statements(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if id(node) in docstrings or not isinstance(node, ast.Constant):
            continue
        if isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, node.value


def prose_lines(text: str, code: str = r"`[^`]*`") -> list[tuple[int, str]]:
    """Numbered lines outside code blocks and tables' code, less what `code` matches."""
    lines, is_code = [], False
    for n, line in enumerate(text.splitlines(), 1):
        is_fence = line.lstrip().startswith("```")
        is_code ^= is_fence
        if not (is_code or is_fence or line.startswith("    ")):
            lines.append((n, re.sub(code, "", line) if code else line))
    return lines if code else [(n, line) for n, line in lines if not line.startswith("|")]
