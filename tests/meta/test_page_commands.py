"""Commands of pages that start a server have options and values that it takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from corral.cli.configuration import configure

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands(page: Path) -> list[str]:
    """The commands of its examples and within its text."""
    text = page.read_text()
    blocks = "".join(re.findall(r"^```sh\n(.*?)^```", text, re.S | re.M)).replace("\\\n", " ")
    shown = re.findall(r"^(?:\S+/bin/)?corral +(-.*)", blocks, re.M)
    return [*shown, *re.findall(r"`corral (-[^`]+)`", text)]


CASES = [(page.stem, command) for page in PAGES for command in commands(page)]


@pytest.mark.parametrize(("page", "command"), CASES)
def test_options_of_a_command(page, command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("corral.toml").touch()  # of the page that writes one
    words = shlex.split(re.split(r" (?:2>&1 )?[|>] ", command)[0], comments=True)
    assert not configure(words, {}).notes
