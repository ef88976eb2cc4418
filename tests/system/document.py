"""Commands in documents, run as printed on a real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRINTED_URL = "http://127.0.0.1:8080"
# What a shell runs before the commands: an answer with a status of 400 or more fails them.
_STRICT = 'set -euo pipefail; curl() { command curl -sS --fail-with-body "$@"; }\n'


def marked_blocks(text: str) -> list[tuple[str, str]]:
    """What a document wants to have tested: `curl` or `python`, and the text."""
    return re.findall(r"<!-- test: (curl|python) -->\n```\w+\n(.*?)```", text, re.S)


def run_block(kind: str, text: str, url: str) -> str:
    """What it prints, which has to be something; anything in it that fails fails. Files are for nobody."""
    text = text.replace(PRINTED_URL, url)
    command = [sys.executable, "-c", text] if kind == "python" else ["bash", "-c", _STRICT + text]
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as scratch:
        result = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env, cwd=scratch)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.strip()
    assert not re.search(r'"error":\s*{\s*"code"', result.stdout)
    return result.stdout
