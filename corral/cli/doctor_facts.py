"""What `corral doctor` looks at: the machine and the installed packages, as one value.

Runs also where packages are missing: imports beyond the standard library are late, and may fail.
"""

from __future__ import annotations

import http.client
import importlib.metadata
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from corral.cli.default_model import find_default_model
from corral.core.control_group import cpu_quota, memory_limits
from corral.core.libllama import BUNDLE, find_bindings

if TYPE_CHECKING:
    from corral.cli.devices import NativeFacts

DISTRIBUTION = "llama-corral"
NATIVE = "llama-cpp-python"
_TOOL_S = 30.0
_HEALTH_S = 3.0
_COMPILERS = ("cc", "gcc", "clang")
_FINE = "fine"
_IMPORT = f"""
import importlib, sys
for name in sys.argv[1:]:
    print(name, end="\\t", flush=True)
    try:
        importlib.import_module(name)
        print("{_FINE}", flush=True)
    except Exception as error:
        print(str(error).replace("\\n", " ") or type(error).__name__, flush=True)
"""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CacheFolder:
    """`n_free_bytes`: on its file system, or on the one where it would be made."""

    path: str
    exists: bool
    is_writable: bool
    n_used_bytes: int = 0
    n_free_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """A text in place of another value says why that is unknown."""

    python: tuple[int, int, int]
    implementation: str
    executable: str
    system: str
    requirements: tuple[str, ...] | None  # of the installed package; None: it is not installed
    versions: Mapping[str, str]  # of packages, by name in lower case
    broken: Mapping[str, str]  # packages that cannot be imported, and why
    compiler: str
    cmake: str
    native: NativeFacts | str
    cpu_flags: frozenset[str]
    gpus: tuple[str, ...]  # makers of those that the system shows: nvidia, amd, intel, apple
    n_memory_bytes: int | None
    n_available_bytes: int | None
    n_group_bytes: int | None  # the tightest limit of a container
    n_lockable_bytes: int | None  # None: unlimited
    n_cpus: int
    n_allowed_cpus: int
    cpu_quota: float | None
    n_files: int | None
    port: int
    port_user: str  # empty: the port is free
    loopbacks: tuple[str, ...]
    cache: CacheFolder | str
    model: str  # the default one; empty: it is not installed
    model_error: str


def gather(port: int) -> Facts:
    requirements = _requirements()
    names = [split_requirement(text)[0] for text in requirements or ()]
    n_memory_bytes, n_available_bytes = _memory()
    n_cpus = os.cpu_count() or 1
    model = find_default_model()
    return Facts(
        python=sys.version_info[:3],
        implementation=platform.python_implementation(),
        executable=sys.executable,
        system=f"{platform.system()} {platform.machine()}",
        requirements=requirements,
        versions=_versions([*names, NATIVE]),
        broken=_broken([name for name in names if name != NATIVE]),
        compiler=next((found for name in _COMPILERS if (found := _tool(name))), ""),
        cmake=_tool("cmake"),
        native=_native(),
        cpu_flags=_cpu_flags(),
        gpus=find_gpus(Path("/")),
        n_memory_bytes=n_memory_bytes,
        n_available_bytes=n_available_bytes,
        n_group_bytes=min((limit for limit, _ in memory_limits()), default=None),
        n_lockable_bytes=_limit("RLIMIT_MEMLOCK"),
        n_cpus=n_cpus,
        n_allowed_cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else n_cpus,
        cpu_quota=cpu_quota(),
        n_files=_limit("RLIMIT_NOFILE"),
        port=port,
        port_user=find_port_user(port),
        loopbacks=tuple(host for host in ("127.0.0.1", "::1") if _can_bind(host, 0)),
        cache=_or_reason(_cache_folder),
        model=str(model or ""),
        model_error=_or_reason(lambda: _check_model(model)) if model else "",
    )


def find_gpus(root: Path) -> tuple[str, ...]:
    """Makers of the GPUs that the system shows, whether libllama can use them or not."""
    nodes = (root / "sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id")
    vendors = (root / "sys/class/drm").glob("card[0-9]*/device/vendor")
    found = {
        "nvidia": any((root / "dev").glob("nvidia[0-9]*")) or (root / "usr/lib/wsl/lib/nvidia-smi").exists(),
        "amd": any(_read(node).strip() not in ("", "0") for node in nodes),
        "intel": any(_read(vendor).strip() == "0x8086" for vendor in vendors),
        "apple": sys.platform == "darwin" and platform.machine() == "arm64",
    }
    return tuple(maker for maker, is_there in found.items() if is_there)


def find_port_user(port: int) -> str:
    """What keeps a server from listening on a port of this machine; empty: nothing."""
    try:
        socket.create_connection(("127.0.0.1", port), _HEALTH_S).close()
    except OSError:
        return "" if _can_bind("127.0.0.1", port) else "it cannot be had"
    health = _get_json(port, "/health")
    if "status" not in health and "error" not in health:
        return "another program listens there"
    build = _get_json(port, "/props").get("build_info")
    return f"a server like this one listens there{f' ({build})' if build else ''}"


def import_errors(modules: Sequence[str]) -> dict[str, str]:
    """Import modules in another process, which a broken one may take down; returns what failed, and why."""
    lines = [line.partition("\t") for line in _output([sys.executable, "-c", _IMPORT, *modules]).splitlines()]
    return {module: reason or "it takes Python down" for module, _, reason in lines if reason != _FINE}


def look_at_folder(path: Path) -> CacheFolder:
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    files = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    return CacheFolder(
        str(path),
        path.is_dir(),
        there.is_dir() and os.access(there, os.W_OK | os.X_OK),
        sum(file.lstat().st_size for file in files if file.exists()),
        shutil.disk_usage(there).free,
    )


def _requirements() -> tuple[str, ...] | None:
    """Those of this platform, without extras."""
    try:
        found = importlib.metadata.requires(DISTRIBUTION) or []
        from packaging.requirements import Requirement
    except importlib.metadata.PackageNotFoundError:
        return None
    except ImportError:
        return ("packaging",)
    every = map(Requirement, found)
    return tuple(
        f"{each.name}{each.specifier}"
        for each in every
        if not each.marker or each.marker.evaluate({"extra": ""})
    )


def split_requirement(text: str) -> tuple[str, str]:
    """Name, and versions that will do."""
    name = re.split(r"[^\w.-]", text, maxsplit=1)[0]
    return name.lower(), text.removeprefix(name)


def _versions(names: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        for distribution in importlib.metadata.distributions(name=name, path=[str(BUNDLE), *sys.path]):
            found.setdefault(name, distribution.version)
    return found


def _broken(names: Sequence[str]) -> dict[str, str]:
    modules = {
        module: distribution.lower()
        for module, distributions in importlib.metadata.packages_distributions().items()
        for distribution in distributions
        if distribution.lower() in names and module.isidentifier() and not module.startswith("_")
    }
    return {modules[module]: reason for module, reason in import_errors(list(modules)).items()}


def _or_reason(read: Callable[[], T]) -> T | str:
    """The value, or why it cannot be had."""
    try:
        from corral.core.errors import CorralError

        try:
            return read()
        except CorralError as error:
            return error.message
    except ImportError as error:
        return str(error)


def _native() -> NativeFacts | str:
    if find_bindings() is None:
        return f"{NATIVE} is not installed"

    def ask() -> NativeFacts:
        from corral.cli.devices import native_facts

        return native_facts()

    return _or_reason(ask)


def _cache_folder() -> CacheFolder:
    from corral.core.cache_dir import cache_dir

    return look_at_folder(cache_dir())


def _check_model(path: Path) -> str:
    from corral.gguf.model_file import check_model_file

    check_model_file(path)
    return ""


def _memory() -> tuple[int | None, int | None]:
    """All of it, and what is available."""
    try:
        import psutil

        from corral.memory.host import available_bytes

        return psutil.virtual_memory().total, available_bytes()
    except (ImportError, OSError):
        return None, None


def _cpu_flags() -> frozenset[str]:
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
    return frozenset(found[1].split()) if found else frozenset()


def _limit(name: str) -> int | None:
    try:
        import resource
    except ImportError:
        return None
    soft, _ = resource.getrlimit(getattr(resource, name))
    return None if soft == resource.RLIM_INFINITY else soft


def _tool(name: str) -> str:
    """The first line of what it says of its version."""
    path = shutil.which(name)
    return next(iter(_output([path, "--version"]).splitlines()), path) if path else ""


def _output(command: list[str]) -> str:
    try:
        result = subprocess.run(command, capture_output=True, timeout=_TOOL_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.decode("utf-8", "replace")


def _can_bind(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError:
        return False
    return True


def _get_json(port: int, path: str) -> dict[str, object]:
    """An answer of any status: a server that is loading answers with an error."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_HEALTH_S)
    try:
        connection.request("GET", path)
        found = json.loads(connection.getresponse().read(1 << 20))
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    finally:
        connection.close()
    return found if isinstance(found, dict) else {}


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
