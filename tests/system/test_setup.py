"""The set-up that `make` does."""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import psutil
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


def quietly(tmp_path: Path, *command: str, **options) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["sh", "tools/quietly.sh", tmp_path / "log", "sh", "-c", *command],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_what_succeeds_is_quiet_and_what_fails_shows_everything(tmp_path):
    command = "echo a result; echo WARNING: an index >&2; exit $0"
    assert quietly(tmp_path, command, "0").communicate() == ("", "")
    assert not (tmp_path / "log").exists()
    failed = quietly(tmp_path, command, "7")
    out, err = failed.communicate()
    assert (failed.returncode, out) == (7, "")
    assert err.startswith("a result\nWARNING: an index\n")


def test_what_takes_long_gives_a_sign_of_life_and_can_be_interrupted(tmp_path):
    env = {**os.environ, "EVERY_S": "0.05"}
    with quietly(tmp_path, "cat", env=env) as process:
        assert "still running" in process.stdout.readline()
        process.stdin.close()
        assert "still running" not in process.stderr.read()
        assert process.wait() == 0
    with quietly(tmp_path, "echo $$; exec cat", env=env, start_new_session=True) as process:
        assert "still running" in process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait() == 130
    assert not psutil.pid_exists(int((tmp_path / "log").read_text()))


def test_the_set_up_hides_what_pip_says_but_not_why_it_failed(tmp_path):
    """With a python that is none: `pip show` finds nothing, `pip install` talks a lot and fails."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(
        '#!/bin/sh\ncase "$*" in *install*) echo "no index"; exit ${STATUS};; *) exit 1;; esac\n'
    )
    python.chmod(0o755)

    def build(status: int) -> subprocess.CompletedProcess[str]:
        command = ["sh", "tools/build_native.sh", python, "llama_cpp_python==0", "--prefer-binary"]
        env = {**os.environ, "STATUS": str(status)}
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)

    result = build(0)
    assert (result.returncode, result.stdout, result.stderr) == (
        0,
        "installing a wheel of llama_cpp_python==0\n",
        "",
    )
    result = build(3)
    assert result.returncode == 3
    assert "no index" in result.stderr


@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="mended on x86-64 only")
def test_libllama_is_the_mended_one():
    (mark,) = re.findall(r'"(mended by corral: .*)"', (ROOT / "tools" / "native" / "mend.h").read_text())
    folder = Path(sysconfig.get_path("platlib")) / "llama_cpp" / "lib"
    assert any(mark.encode() in path.read_bytes() for path in folder.glob("libggml-cpu*"))


def test_kernels_change_where_pieces_of_prompts_begin():
    """Those for many tokens round otherwise: no piece may be smaller, and no stream or draft as large."""
    assert f"n >= {MIN_CHUNK} &&" in (ROOT / "tools" / "native" / "mend.h").read_text()
