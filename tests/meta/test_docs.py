"""Documents that are written from tables, and rules the repository keeps."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.reference import FOLDER, pages

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", pages())
def test_reference_pages_are_what_the_tables_say(name):
    assert (FOLDER / name).read_text() == pages()[name], "run: python -m tools.reference"


def test_layers():
    result = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "docs/background/decisions.md"])
def test_pages_for_maintainers_name_real_files(page):
    rooms = "|".join(each.parent.name for each in (ROOT / "corral").glob("*/__init__.py"))
    names = re.findall(rf"`((?:{rooms}|webui)/[\w/.]+)`", (ROOT / page).read_text())
    assert names
    assert [name for name in names if not (ROOT / "corral" / name).exists()] == []


def test_every_dependency_has_a_reason():
    architecture = (ROOT / "ARCHITECTURE.md").read_text().lower()
    project = (ROOT / "pyproject.toml").read_text()
    names = re.findall(r'^    "([a-z-]+)', project.split("dependencies = [")[1].split("]")[0], re.M)
    assert names
    for name in names:
        assert name in architecture


def test_pinned_requirements_name_no_address():
    for path in ROOT.glob("requirements*.txt"):
        assert "://" not in path.read_text()


def test_readme_has_the_two_commands():
    readme = (ROOT / "README.md").read_text()
    assert "make serve" in readme
    assert "make test" in readme
    assert "make test" in (ROOT / ".ci" / "run").read_text()
