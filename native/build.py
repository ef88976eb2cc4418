"""Builds llama-cpp-python with the patches in native/patches, and installs it for the Python that runs this.

    python native/build.py [PIP ARGUMENT ...]

CMAKE_ARGS selects other hardware. Pip arguments that ask for a prebuilt wheel (--only-binary,
--prefer-binary) install that one, without patches. `pip install .` calls `build_wheel` from setup.py.
A wheel that was built once is kept in pip's cache directory, for the same patches, compiler, CPU and
CMAKE_ARGS. See docs/start/install.md.
"""

from __future__ import annotations

import hashlib
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATCHES = sorted((ROOT / "native" / "patches").glob("*.patch"))
PIN = runpy.run_path(str(ROOT / "corral" / "core" / "libllama.py"))
VERSION, PATCH_SET = PIN["VERSION"], PIN["PATCH_SET"]
REQUIREMENT = f"llama-cpp-python=={VERSION}"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"  # of its sdist
CMAKE_ARGS = "-DGGML_RPC=ON"  # for --rpc
SETTINGS = ("CMAKE_ARGS", "CFLAGS", "CXXFLAGS", "CC", "CXX")  # environment variables that a build depends on

NO_COMPILER = """There is no C and C++ compiler here, and libllama is built from source by default.
Either install one (Debian: apt-get install build-essential; macOS: xcode-select --install),
or use a prebuilt wheel of llama-cpp-python: docs/start/install.md names the index that holds them, then
  make serve NATIVE_PIP_ARGS="--only-binary llama-cpp-python --extra-index-url INDEX\""""
NO_PATCH = "There is neither git nor patch to apply native/patches with (Debian: apt-get install patch)."
PORT = """go back to the version it is made for
(VERSION in corral/core/libllama.py), or port the patches: docs/start/install.md says how."""


class BuildError(Exception):
    """Its text says what to do."""


def main(arguments: Sequence[str]) -> None:
    if any(argument.startswith(("--only-binary", "--prefer-binary")) for argument in arguments):
        run_pip("install", "--progress-bar", "off", *arguments, REQUIREMENT)
        return
    with tempfile.TemporaryDirectory() as folder:
        wheel = build_wheel(Path(folder), arguments)
        run_pip("install", "--no-deps", "--force-reinstall", str(wheel))


def build_wheel(folder: Path, pip_arguments: Sequence[str] = ()) -> Path:
    """A wheel of the patched llama-cpp-python in this folder, from the cache if there is one."""
    compiler = find_compiler()
    cache = find_cache(compiler) if "--no-cache-dir" not in pip_arguments else None
    for kept in cache.glob("*.whl") if cache else ():
        print(f"using {kept}", flush=True)
        return Path(shutil.copy(kept, folder))
    print(f"building {REQUIREMENT} with patch set {PATCH_SET}: less than 10 minutes on two cores", flush=True)
    with tempfile.TemporaryDirectory() as name:
        source = prepare_source(Path(name), pip_arguments)
        environment = {
            **os.environ,
            "CMAKE_ARGS": f"{os.environ.get('CMAKE_ARGS', '')} {CMAKE_ARGS}",
            "CMAKE_BUILD_PARALLEL_LEVEL": os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL")
            or str(os.cpu_count() or 1),
        }
        command = ("wheel", "--no-deps", "--wheel-dir", str(folder), *pip_arguments, str(source))
        run_pip(*command, environment=environment)
    (wheel,) = folder.glob("llama_cpp_python-*.whl")
    if cache:
        cache.mkdir(parents=True, exist_ok=True)
        shutil.copy(wheel, cache / f"{os.getpid()}.part")
        os.replace(cache / f"{os.getpid()}.part", cache / wheel.name)
    return wheel


def prepare_source(folder: Path, pip_arguments: Sequence[str] = ()) -> Path:
    """The unpacked and patched source of the pinned version."""
    check_version(VERSION)
    options = ("--no-deps", "--no-binary", "llama-cpp-python", "--dest", str(folder))
    run_pip("download", *options, *pip_arguments, REQUIREMENT)
    (archive,) = folder.glob("*.tar.gz")
    if hashlib.sha256(archive.read_bytes()).hexdigest() != SHA256:
        raise BuildError(
            f"{archive.name} is not the published one: its SHA-256 is not the one in {__file__}."
        )
    with tarfile.open(archive) as opened:
        opened.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (source,) = (path for path in folder.iterdir() if path.is_dir())
    apply_patches(source)
    return source


def apply_patches(source: Path) -> None:
    """Refuses any version but the one they are made for."""
    version_file = source / "llama_cpp" / "__init__.py"
    text = version_file.read_text()
    (version,) = re.findall(r'__version__ = "(.*)"', text)
    check_version(version)
    # Git must not take a repository that the source happens to be in for its own.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(source.parent)}
    tool = ["git", "apply"] if shutil.which("git") else ["patch", "-p1", "--batch", "--fuzz=0", "--input"]
    if not shutil.which(tool[0]):
        raise BuildError(NO_PATCH)
    for patch in PATCHES:
        print(f"applying {patch.name}", flush=True)
        result = subprocess.run([*tool, str(patch)], cwd=source, env=environment, check=False)
        if result.returncode:
            raise BuildError(f"{patch.name} does not apply to this llama-cpp-python {version}: {PORT}")
    version_file.write_text(text.replace(version, f"{version}+corral.{PATCH_SET}"))


def check_version(version: str) -> None:
    for patch in PATCHES:
        (patched,) = re.findall(r"^Applies-to: llama-cpp-python (.+)$", patch.read_text(), re.MULTILINE)
        if version != patched:
            raise BuildError(f"{patch.name} is made for llama-cpp-python {patched}, not {version}: {PORT}")


def find_compiler() -> str:
    """The C compiler; on Windows CMake finds it by itself."""
    if sys.platform == "win32":
        return ""
    c = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), "")
    cpp = os.environ.get("CXX") or next(filter(shutil.which, ("c++", "g++", "clang++")), "")
    if not c or not cpp:
        raise BuildError(NO_COMPILER)
    return c


def find_cache(compiler: str) -> Path | None:
    """Where the wheel of such a build is kept; None: pip keeps nothing."""
    command = [sys.executable, "-m", "pip", "cache", "dir"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        return None
    digest = hashlib.sha256(CMAKE_ARGS.encode())
    for patch in PATCHES:
        digest.update(patch.read_bytes().partition(b"\ndiff --git")[2])
    facts = [VERSION, sysconfig.get_platform(), *(os.environ.get(name, "") for name in SETTINGS)]
    digest.update("\0".join([*facts, describe_target(compiler)]).encode())
    return Path(result.stdout.strip()) / "corral" / digest.hexdigest()[:16]


def describe_target(compiler: str) -> str:
    """Everything that the compiler knows of itself and of this CPU, for which it builds by default."""
    if not compiler:
        return os.environ.get("PROCESSOR_IDENTIFIER", "")
    for option in ("-march=native", "-mcpu=native"):
        command = [*compiler.split(), option, "-dM", "-E", "-x", "c", os.devnull]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode == 0:
            return result.stdout
    return ""


def run_pip(*arguments: str, environment: dict[str, str] | None = None) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    if subprocess.run(command, env=environment, check=False).returncode:
        raise BuildError(f"pip {arguments[0]} failed")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except BuildError as error:
        raise SystemExit(str(error)) from None
