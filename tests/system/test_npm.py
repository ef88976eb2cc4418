"""Clients from npm: the text that streams is the text of the whole answer."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.system.process import CorralProcess

PROGRAMS = Path(__file__).parent / "npm"
FOLDER = Path(__file__).parents[2] / ".cache" / "npm"


@pytest.fixture(scope="module")
def node():
    if (found := shutil.which("node")) is None:
        pytest.skip("node is not installed")
    if not (FOLDER / "node_modules").is_dir():
        pytest.skip("the packages are not installed: make dev does it where npm is there")
    return found


@pytest.fixture(scope="module")
def server(tiny, node):
    with CorralProcess("-m", tiny, "-c", 1024) as server:
        yield server


@pytest.mark.parametrize("name", ["openai", "anthropic", "ollama"])
def test_a_stream_says_what_the_whole_answer_says(server, node, name):
    command = [node, str(PROGRAMS / f"{name}.cjs"), server.url]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["text"] == said["final"] != ""
