"""Every command of the README, run as printed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import httpx
import pytest

from tests.system.document import ROOT, marked_blocks, run_block
from tests.system.process import START_S

README = (ROOT / "README.md").read_text()
BLOCKS = marked_blocks(README)
HUB_COMMAND = ".venv/bin/corral -hf Qwen/Qwen3-4B-GGUF:Q4_K_M -c 8192\n"  # test_hub.py downloads


def test_no_command_is_left_out():
    fenced = re.findall(r"```(?:sh|python)\n(.*?)```", README, re.S)
    untested = [block for block in fenced if block not in [text for _, text in BLOCKS]]
    assert untested == ["make serve\n", HUB_COMMAND, "make test\n"]


@pytest.mark.parametrize(("kind", "text"), BLOCKS, ids=[text[:60] for _, text in BLOCKS])
def test_readme_block(corral, kind, text):
    run_block(kind, text, corral.url)


def test_the_command_that_downloads_has_valid_options():
    done = subprocess.run(
        [sys.executable, "-m", *f"{HUB_COMMAND.strip()} --print-config".removeprefix(".venv/bin/").split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert 'hf-repo = "Qwen/Qwen3-4B-GGUF:Q4_K_M"' in done.stdout


def test_make_serve_serves():
    """`make test` has done the set-up already: nothing is left but the server itself."""
    is_set_up = subprocess.run(["make", "--question", "install"], cwd=ROOT, capture_output=True)
    assert is_set_up.returncode == 0, "run `make install`: a test does not change the environment"
    command = ["make", "--no-print-directory", "serve", "ARGS=-c 512 --port 0"]
    make = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert make.stderr is not None
    with make, make.stderr:
        url = next(found[1] for line in make.stderr if (found := re.search(r"ready on (\S+)", line)))
        assert httpx.get(f"{url}/health", timeout=START_S).json()["status"] == "ok"
        os.killpg(make.pid, signal.SIGTERM)
