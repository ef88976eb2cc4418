"""What `corral doctor` looks at: the machine and what is installed on it, as one value.

Runs also where packages are missing: what is not of Python itself is imported late, and may fail.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from corral.core.libllama import BUNDLE, find_bindings

if TYPE_CHECKING:
    from corral.cli.devices import NativeFacts

DISTRIBUTION = "llama-corral"
NATIVE = "llama-cpp-python"
_TOOL_S = 30.0
_HEALTH_S = 3.0
_COMPILERS = ("cc", "gcc", "clang")
_MARKER = re.compile(r"(\w+)\s*(==|!=|<=|>=|<|>)\s*[\"'](.*)[\"']")
_FINE = "fine"
# Imports one module after the other, and says how it went.
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
    """`n_free_bytes`: of the file system it is, or would be, on."""

    path: str
    exists: bool
    is_writable: bool
    n_used_bytes: int = 0
    n_free_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """Texts in place of what could not be found out say why."""

    python: tuple[int, int, int]
    implementation: str
    executable: str
    system: str
    requirements: tuple[str, ...] | None  # of the installed package; none: it is not
    versions: Mapping[str, str]  # of packages, by their names in lower case
    broken: Mapping[str, str]  # packages that cannot be imported, and why
    compiler: str
    cmake: str
    native: NativeFacts | str
    cpu_flags: frozenset[str]
    gpus: tuple[str, ...]  # who made those that the system shows: nvidia, amd, intel, apple
    n_memory_bytes: int | None
    n_available_bytes: int | None
    n_group_bytes: int | None  # the tightest limit of a container
    n_lockable_bytes: int | None  # none: any
    n_cpus: int
    n_allowed_cpus: int
    cpu_quota: float | None
    n_files: int | None
    port: int
    port_user: str  # nothing: it is free
    loopbacks: tuple[str, ...]
    cache: CacheFolder | str
    model: str  # the default one; nothing: it is not installed
    model_error: str


def gather(port: int) -> Facts:
    requirements = _requirements()
    names = [_name_of(text) for text in requirements or ()]
    model, model_error = _default_model()
    return Facts(
        python=(sys.version_info.major, sys.version_info.minor, sys.version_info.micro),
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
        n_memory_bytes=_guarded(_memory_bytes),
        n_available_bytes=_guarded(_available_bytes),
        n_group_bytes=_guarded(_group_bytes),
        n_lockable_bytes=_limit("RLIMIT_MEMLOCK"),
        n_cpus=os.cpu_count() or 1,
        n_allowed_cpus=len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1,
        cpu_quota=_guarded(_cpu_quota),
        n_files=_limit("RLIMIT_NOFILE"),
        port=port,
        port_user=find_port_user(port),
        loopbacks=tuple(host for host in ("127.0.0.1", "::1") if _can_bind(host, 0)),
        cache=_cache_folder(),
        model=model,
        model_error=model_error,
    )


def find_gpus(root: Path) -> tuple[str, ...]:
    """Makers of the GPUs that the system shows, whether libllama can use them or not."""
    found = []
    if any((root / "dev").glob("nvidia[0-9]*")) or (root / "usr/lib/wsl/lib/nvidia-smi").exists():
        found.append("nvidia")
    nodes = (root / "sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id")
    if any(_read(node).strip() not in ("", "0") for node in nodes):
        found.append("amd")
    vendors = (root / "sys/class/drm").glob("card[0-9]*/device/vendor")
    if any(_read(vendor).strip() == "0x8086" for vendor in vendors):
        found.append("intel")
    if sys.platform == "darwin" and platform.machine() == "arm64":
        found.append("apple")
    return tuple(found)


def find_port_user(port: int) -> str:
    """What keeps a server from listening on a port of this machine; nothing: it can."""
    try:
        socket.create_connection(("127.0.0.1", port), _HEALTH_S).close()
    except OSError:
        return "" if _can_bind("127.0.0.1", port) else "it cannot be had"
    health = _get_json(f"http://127.0.0.1:{port}/health")
    if "status" not in health and "error" not in health:
        return "another program listens there"
    build = _get_json(f"http://127.0.0.1:{port}/props").get("build_info")
    return f"a server like this one listens there{f' ({build})' if build else ''}"


def import_errors(modules: Sequence[str]) -> dict[str, str]:
    """Which of them cannot be imported, and why. In another process: what is broken may take it down."""
    lines = [line.partition("\t") for line in _output([sys.executable, "-c", _IMPORT, *modules]).splitlines()]
    return {module: reason or "it takes Python down" for module, _, reason in lines if reason != _FINE}


def applies(marker: str) -> bool:
    """Whether a requirement with this condition is one of this machine; only joined with `and`."""
    values = {
        "extra": "",
        "platform_system": platform.system(),
        "python_version": ".".join(map(str, sys.version_info[:2])),
        "sys_platform": sys.platform,
    }
    parts = (_MARKER.fullmatch(part.strip()) for part in marker.split(" and "))
    return all(_holds(values[part[1]], part[2], part[3]) for part in parts if part and part[1] in values)


def _holds(ours: str, operator: str, theirs: str) -> bool:
    if operator in ("==", "!="):
        return (ours == theirs) == (operator == "==")
    numbers = [tuple(map(int, re.findall(r"\d+", text))) for text in (ours, theirs)]
    is_less, is_same = numbers[0] < numbers[1], numbers[0] == numbers[1]
    return {"<": is_less, "<=": is_less or is_same, ">": not (is_less or is_same), ">=": not is_less}[
        operator
    ]


def _requirements() -> tuple[str, ...] | None:
    try:
        found = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    pairs = (text.partition(";") for text in found)
    return tuple(text.strip() for text, _, marker in pairs if applies(marker))


def _name_of(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower()


def _versions(names: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        for distribution in importlib.metadata.distributions(name=name, path=[str(BUNDLE), *sys.path]):
            found.setdefault(name, distribution.version)
    return found


def _broken(names: list[str]) -> dict[str, str]:
    modules = {
        module: distribution.lower()
        for module, distributions in importlib.metadata.packages_distributions().items()
        for distribution in distributions
        if distribution.lower() in names and module.isidentifier() and not module.startswith("_")
    }
    return {modules[module]: reason for module, reason in import_errors(list(modules)).items()}


def _native() -> NativeFacts | str:
    if find_bindings() is None:
        return f"{NATIVE} is not installed"
    try:
        from corral.cli.devices import native_facts
        from corral.core.errors import CorralError
    except ImportError as error:
        return str(error)
    try:
        return native_facts()
    except CorralError as error:
        return error.message


def _tool(name: str) -> str:
    """Its version as it says it, if it is there."""
    path = shutil.which(name)
    return next(iter(_output([path, "--version"]).splitlines()), path) if path else ""


def _output(command: list[str]) -> str:
    try:
        result = subprocess.run(command, capture_output=True, timeout=_TOOL_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.decode("utf-8", "replace")


def _cpu_flags() -> frozenset[str]:
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
    return frozenset(found[1].split()) if found else frozenset()


def _guarded(read: Callable[[], T | None]) -> T | None:
    try:
        return read()
    except (ImportError, OSError):
        return None


def _memory_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().total)


def _available_bytes() -> int | None:
    from corral.memory.host import available_bytes

    return available_bytes()


def _group_bytes() -> int | None:
    from corral.core.control_group import memory_limits

    return min((limit for limit, _ in memory_limits()), default=None)


def _cpu_quota() -> float | None:
    from corral.core.control_group import cpu_quota

    return cpu_quota()


def _limit(name: str) -> int | None:
    try:
        import resource
    except ImportError:
        return None
    soft, _ = resource.getrlimit(getattr(resource, name))
    return None if soft == resource.RLIM_INFINITY else soft


def _can_bind(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError:
        return False
    return True


def _get_json(url: str) -> dict[str, object]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _AnyStatus())
    try:
        with opener.open(url, timeout=_HEALTH_S) as response:
            found = json.loads(response.read(1 << 20))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


class _AnyStatus(urllib.request.HTTPErrorProcessor):
    """A server that is still loading answers with an error, which is an answer too."""

    def http_response(self, request: urllib.request.Request, response: Any) -> Any:  # noqa: ARG002
        return response


def _cache_folder() -> CacheFolder | str:
    try:
        from corral.core.cache_dir import cache_dir
        from corral.core.errors import CorralError
    except ImportError as error:
        return str(error)
    try:
        return look_at_folder(cache_dir())
    except CorralError as error:
        return error.message


def look_at_folder(path: Path) -> CacheFolder:
    """One that is to be made is as its first parent that is there."""
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    files = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    return CacheFolder(
        str(path),
        path.is_dir(),
        there.is_dir() and os.access(there, os.W_OK | os.X_OK),
        sum(file.lstat().st_size for file in files if file.exists()),
        shutil.disk_usage(there).free,
    )


def _default_model() -> tuple[str, str]:
    """Its path, and what is wrong with it."""
    from corral.cli.default_model import find_default_model

    path = find_default_model()
    if path is None:
        return "", ""
    try:
        from corral.core.errors import CorralError
        from corral.gguf.model_file import check_model_file
    except ImportError as error:
        return str(path), str(error)
    try:
        check_model_file(path)
    except CorralError as error:
        return str(path), error.message
    return str(path), ""


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
