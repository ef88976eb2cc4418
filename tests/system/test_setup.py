"""The set-up that `make` does."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from corral.core.chunk import MIN_CHUNK

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


@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="mended on x86-64 only")
def test_libllama_is_the_mended_one():
    (mark,) = re.findall(r'"(mended by corral: .*)"', (ROOT / "tools" / "native" / "mend.h").read_text())
    folder = Path(sysconfig.get_path("platlib")) / "llama_cpp" / "lib"
    assert any(mark.encode() in path.read_bytes() for path in folder.glob("libggml-cpu*"))


def test_kernels_change_where_pieces_of_prompts_begin():
    """Those for many tokens round otherwise: no piece may be smaller, and no stream or draft as large."""
    assert f"n >= {MIN_CHUNK} &&" in (ROOT / "tools" / "native" / "mend.h").read_text()
