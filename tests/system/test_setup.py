"""The set-up that `make` does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_second_make_has_nothing_to_do():
    stamps = [f".venv/stamps/{name}" for name in ("venv", "native", "install", "dev", "tools")]
    result = subprocess.run(["make", "--question", *stamps], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_without_a_compiler_it_says_so_and_what_to_do(tmp_path):
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (tmp_path / "bin").mkdir()
    for program in ("sh", "cat"):
        (tmp_path / "bin" / program).symlink_to(f"/bin/{program}")
    result = subprocess.run(
        ["/bin/sh", "tools/build_native.sh", venv / "bin" / "python", "llama_cpp_python==0.3.36"],
        cwd=ROOT,
        env={**os.environ, "PATH": str(tmp_path / "bin")},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert "no C and C++ compiler" in result.stderr
    assert "prebuilt wheel" in result.stderr
