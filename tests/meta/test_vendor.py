"""Libraries of the pages: each is in the table with its licence, and no file of a page names another host."""

from __future__ import annotations

import re
from fnmatch import fnmatch

import pytest

from tools.vendor_web import FOLDER, LIBRARIES, README, readme

WEBUI = FOLDER.parent
FILES = sorted(p.relative_to(FOLDER).as_posix() for p in FOLDER.rglob("*") if p.is_file())
PAGE_FILES = sorted(p for p in WEBUI.rglob("*") if p.suffix in (".html", ".css", ".js", ".mjs", ".svg"))
# What makes a browser load something, or go somewhere.
LOADS = (
    r"""<(?!a\b)[^<>]*\s(?:src|href|srcset|action|data)\s*=\s*["']?\s*(?:https?:)?//""",
    r"""\burl\(\s*["']?\s*(?:https?:)?//""",
    r"""@import\s+["']?\s*(?:https?:)?//""",
    r"""\b(?:import|from)\s*\(?\s*["'`]\s*(?:https?:)?//""",
    r"""\b(?:fetch|Worker|EventSource|WebSocket|importScripts)\(\s*["'`]\s*(?:https?:|wss?:)?//""",
    r"""\.(?:src|href)\s*=\s*["'`]\s*(?:https?:)?//""",
)


def test_the_table_is_what_the_tool_writes():
    assert (FOLDER / README).read_text() == readme(), "run: python -m tools.vendor_web"


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_every_library_is_here_with_version_and_licence(library):
    assert re.fullmatch(r"\d+(\.\d+)*", library.version)
    assert library.licence
    assert library.licence_targets
    for target in [*library.licence_targets, *(file.target for file in library.files)]:
        assert any(fnmatch(name, target) for name in FILES), target


def test_every_file_is_in_the_table():
    text = (FOLDER / README).read_text()
    for name in FILES:
        named = [target for target in re.findall(r"`([^`]+)`", text) if fnmatch(name, target)]
        assert named or name == README, f"{name} belongs to no library of tools/vendor_web.py"


@pytest.mark.parametrize("path", PAGE_FILES, ids=lambda path: str(path.relative_to(WEBUI)))
def test_nothing_is_loaded_from_another_host(path):
    text = path.read_text()
    found = [match[0] for pattern in LOADS for match in re.finditer(pattern, text)]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://x.test/a.js">',
        "<img src=//x.test/a.png>",
        "a { background: url(https://x.test/a.png) }",
        '@import "//x.test/a.css";',
        'import a from "https://x.test/a.js";',
        'await import("https://x.test/a.js")',
        'fetch("//x.test/")',
        'image.src = "http://x.test/"',
    ],
)
def test_what_would_load_is_noticed(text):
    assert any(re.search(pattern, text) for pattern in LOADS)
