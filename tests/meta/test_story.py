"""A failed test tells its story in one screen, however much it and its servers have said."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAILS = """
import sys
from tests.system.process import CorralProcess

def test_fails():
    print("noise\\n" * 100_000)
    sys.stderr.write("noise\\n" * 100_000)
    CorralProcess("--help")
"""


def test_a_failed_test_shows_the_end_of_its_servers_logs(tmp_path):
    path = tmp_path / "test_that_fails.py"
    path.write_text(FAILS)
    settings = (f"--config-file={ROOT}/pyproject.toml", f"--rootdir={ROOT}", "-ptests.conftest")
    command = [sys.executable, "-m", "pytest", *settings, "-pno:cacheprovider", path]
    # In CI pytest shows the whole of every comparison.
    environment = {k: v for k, v in os.environ.items() if k not in ("CI", "BUILD_NUMBER")}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 1, done.stdout
    assert "no line like 'ready on" in done.stdout
    assert "server log" in done.stdout
    assert len(done.stdout.splitlines()) < 60
    assert "noise" not in done.stdout
