"""Every command of the README, run as printed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"<!-- test: (curl|python) -->\n```\w+\n(.*?)```", README, re.S)


def test_no_command_is_left_out():
    fenced = re.findall(r"```(?:sh|python)\n(.*?)```", README, re.S)
    untested = [block for block in fenced if block not in [text for _, text in BLOCKS]]
    assert untested == ["make serve\n", "make test\n"]


@pytest.mark.parametrize(("kind", "text"), BLOCKS, ids=[text[:60] for _, text in BLOCKS])
def test_readme_block(corral, kind, text):
    text = text.replace("http://127.0.0.1:8080", corral.url)
    command = [sys.executable, "-c", text] if kind == "python" else ["bash", "-euo", "pipefail", "-c", text]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
    assert '"error"' not in result.stdout


def test_make_serve_serves():
    """`make test` has done the set-up already: nothing is left but the server itself."""
    command = ["make", "--no-print-directory", "serve", "ARGS=-c 512 --port 0"]
    make = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert make.stderr is not None
    with make, make.stderr:
        url = next(found[1] for line in make.stderr if (found := re.search(r"ready on (\S+)", line)))
        assert httpx.get(f"{url}/health").json()["status"] == "ok"
        os.killpg(make.pid, signal.SIGTERM)
