"""What is installed: all that the server hands out is in the package."""

from __future__ import annotations

import glob
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_file_of_the_page_is_in_the_package():
    project = (ROOT / "pyproject.toml").read_text()
    data = project.partition("[tool.setuptools.package-data]\ncorral = [")[2].partition("]")[0]
    patterns = re.findall(r'"(.+?)"', data)
    assert patterns
    # As setuptools reads them.
    packed = {name for each in patterns for name in glob.glob(each, root_dir=ROOT / "corral", recursive=True)}
    folder = ROOT / "corral" / "webui"
    shown = {str(path.relative_to(folder.parent)) for path in folder.rglob("*") if path.is_file()}
    assert len(shown) > 10
    assert not shown - packed
