"""The set-up that `make` does."""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from corral.cli.devices import native_facts
from corral.core.chunk import MIN_CHUNK
from corral.core.libllama import PATCH_SET, VERSION
from tests.tools.wait import wait_until

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "native" / "build.py"


def test_a_second_make_has_nothing_to_do():
    stamps = [f".venv/stamps/{name}" for name in ("venv", "native", "install", "dev", "tools")]
    result = subprocess.run(["make", "--question", *stamps], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_without_a_compiler_it_says_so_and_what_to_do(tmp_path):
    env = {**{k: v for k, v in os.environ.items() if k not in ("CC", "CXX")}, "PATH": str(tmp_path)}
    result = subprocess.run([sys.executable, BUILD], env=env, capture_output=True, text=True)
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
        wait_until(lambda: (tmp_path / "log").read_text().endswith("\n"))
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait() == 130
    wait_until(lambda: not psutil.pid_exists(int((tmp_path / "log").read_text())))


@pytest.fixture
def build() -> dict[str, Any]:
    """The names of native/build.py, which is not part of a package."""
    return runpy.run_path(str(BUILD))


def source_of(folder: Path, version: str) -> Path:
    """The beginning of a source tree: its version, and no file that a patch could change."""
    (folder / "llama_cpp").mkdir()
    (folder / "llama_cpp" / "__init__.py").write_text(f'__version__ = "{version}"\n')
    return folder


def test_another_version_is_refused(tmp_path, build):
    source = source_of(tmp_path, "0.3.37")
    with pytest.raises(build["BuildError"], match=r"made for llama-cpp-python 0\.3\.36, not 0\.3\.37"):
        build["apply_patches"](source)
    assert "0.3.37" in (source / "llama_cpp" / "__init__.py").read_text()


def test_a_source_that_differs_is_refused(tmp_path, build):
    with pytest.raises(build["BuildError"], match=r"0001-.* does not apply"):
        build["apply_patches"](source_of(tmp_path, VERSION))


def test_a_build_is_kept_for_the_same_settings_only(tmp_path, build, monkeypatch):
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path))
    find = partial(build["find_cache"], build["find_compiler"]())
    first = find()
    assert first.is_relative_to(tmp_path)
    assert find() == first
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_CUDA=on")
    assert find() != first
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    assert find() is None


def test_a_kept_build_is_taken(tmp_path, build, monkeypatch):
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "cache"))
    folder = build["find_cache"](build["find_compiler"]())
    folder.mkdir(parents=True)
    (folder / "llama_cpp_python-0.whl").write_text("built")
    assert build["build_wheel"](tmp_path).read_text() == "built"
    assert (tmp_path / "llama_cpp_python-0.whl").exists()


def test_a_prebuilt_wheel_is_installed_as_it_is(build):
    calls: list[tuple[str, ...]] = []
    build["main"].__globals__["run_pip"] = lambda *arguments: calls.append(arguments)
    build["main"](["--only-binary", "llama-cpp-python"])
    (call,) = calls
    assert call[0] == "install"
    assert call[-3:] == ("--only-binary", "llama-cpp-python", f"llama-cpp-python=={VERSION}")


def test_every_patch_has_a_reason_and_a_version():
    patches = sorted((ROOT / "native" / "patches").iterdir())
    assert [int(patch.name[:4]) for patch in patches] == list(range(1, len(patches) + 1))
    for patch in patches:
        header = patch.read_text().partition("diff --git")[0]
        assert re.match(r"Subject: .+\n\n(.+\n)+Applies-to: llama-cpp-python " + re.escape(VERSION), header)


def test_libllama_is_the_patched_one():
    assert native_facts().features.count(f"CORRAL_PATCH_SET = {PATCH_SET}") == 1
    (patch,) = (ROOT / "native" / "patches").glob("0001-*")
    assert f'"CORRAL_PATCH_SET", "{PATCH_SET}"' in patch.read_text()


def test_kernels_change_where_chunks_of_prompts_begin():
    """Those for many tokens round differently: chunks are never smaller, and other batches always."""
    (patch,) = (ROOT / "native" / "patches").glob("0003-*")
    assert f"+    if (n < {MIN_CHUNK})" in patch.read_text()
