"""Gather the facts for `corral doctor`: the machine and the installed packages, as one value.

Runs even if packages are missing: imports beyond the standard library are late and may fail.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
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
    """`n_free_bytes`: on its file system, or on the one where it would be created."""

    path: str
    exists: bool
    is_writable: bool
    n_used_bytes: int = 0
    n_free_bytes: int = 0


class Facts:
    """What takes time is found out on demand. A text in place of a value says why it is unknown."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.python = sys.version_info[:3]
        self.implementation = platform.python_implementation()
        self.executable = sys.executable
        self.system = f"{platform.system()} {platform.machine()}"
        self.cpu_flags = _cpu_flags()
        self.gpus = find_gpus(Path("/"))
        self.n_memory_bytes, self.n_available_bytes = _memory()
        self.n_group_bytes = min((limit for limit, _ in memory_limits()), default=None)  # of a container
        self.n_lockable_bytes, self.n_files = _limit("RLIMIT_MEMLOCK"), _limit("RLIMIT_NOFILE")
        self.n_cpus = self.n_allowed_cpus = os.cpu_count() or 1
        if hasattr(os, "sched_getaffinity"):
            self.n_allowed_cpus = len(os.sched_getaffinity(0))
        self.cpu_quota = cpu_quota()
        self.loopbacks = tuple(host for host in ("127.0.0.1", "::1") if _can_bind(host, 0))
        self.model = str(find_default_model() or "")  # empty: it is not installed

    @cached_property
    def requirements(self) -> tuple[str, ...] | None:
        """Those of this platform, without extras; None: Corral is not installed."""
        try:
            found = importlib.metadata.requires(DISTRIBUTION) or []
            from packaging.requirements import Requirement
        except importlib.metadata.PackageNotFoundError:
            return None
        except ImportError:
            return ("packaging",)
        every = [
            each for each in map(Requirement, found) if not each.marker or each.marker.evaluate({"extra": ""})
        ]
        return tuple(f"{each.name}{each.specifier}" for each in every)

    @property
    def _names(self) -> list[str]:
        return [split_requirement(text)[0] for text in self.requirements or ()]

    @cached_property
    def versions(self) -> dict[str, str]:
        """Of packages, by name in lower case."""
        found: dict[str, str] = {}
        for name in (*self._names, NATIVE):
            for distribution in importlib.metadata.distributions(name=name, path=[str(BUNDLE), *sys.path]):
                found.setdefault(name, distribution.version)
        return found

    @cached_property
    def broken(self) -> dict[str, str]:
        """Packages that cannot be imported, and why."""
        modules = {
            module: distribution.lower()
            for module, distributions in importlib.metadata.packages_distributions().items()
            for distribution in distributions
            if distribution.lower() in set(self._names) - {NATIVE}
            and module.isidentifier()
            and not module.startswith("_")
        }
        return {modules[module]: reason for module, reason in import_errors(list(modules)).items()}

    @cached_property
    def compiler(self) -> str:
        return next((found for name in _COMPILERS if (found := _tool(name))), "")

    @cached_property
    def cmake(self) -> str:
        return _tool("cmake")

    @cached_property
    def port_user(self) -> str:
        return find_port_user(self.port)

    @cached_property
    def native(self) -> NativeFacts | str:
        def ask() -> NativeFacts:
            from corral.cli.devices import native_facts

            return native_facts()

        return _or_reason(ask) if find_bindings() is not None else f"{NATIVE} is not installed"

    @cached_property
    def cache(self) -> CacheFolder | str:
        def look() -> CacheFolder:
            from corral.core.cache_dir import cache_dir

            return look_at_folder(cache_dir())

        return _or_reason(look)

    @cached_property
    def model_error(self) -> str:
        def check() -> str:
            from corral.gguf.model_file import check_model_file

            check_model_file(self.model)
            return ""

        return _or_reason(check)


def find_gpus(root: Path) -> tuple[str, ...]:
    """Return the vendors of the GPUs that the system reports, whether or not libllama can use them."""
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
    """Return why a server cannot listen on a local port; empty if it can."""
    try:
        socket.create_connection(("127.0.0.1", port), _HEALTH_S).close()
    except OSError:
        return "" if _can_bind("127.0.0.1", port) else "it cannot be bound"
    health = _get_json(port, "/health")
    if "status" not in health and "error" not in health:
        return "in use by another program"
    props = _get_json(port, "/props")
    build = props.get("server_version") or props.get("build_info")  # a llama-server has only the latter
    return f"in use by a server like this one{f' ({build})' if build else ''}"


def import_errors(modules: Sequence[str]) -> dict[str, str]:
    """Import modules in another process, which a broken module may crash. Returns the errors by module."""
    lines = [line.partition("\t") for line in _output([sys.executable, "-c", _IMPORT, *modules]).splitlines()]
    return {module: reason or "importing it crashes Python" for module, _, reason in lines if reason != _FINE}


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


def split_requirement(text: str) -> tuple[str, str]:
    """Split a requirement into its name in lower case and its version specifier."""
    name = re.split(r"[^\w.-]", text, maxsplit=1)[0]
    return name.lower(), text.removeprefix(name)


def _or_reason(read: Callable[[], T]) -> T | str:
    """Return the value, or the reason why it cannot be read."""
    try:
        from corral.core.errors import CorralError

        try:
            return read()
        except CorralError as error:
            return error.message
    except ImportError as error:
        return str(error)


def _memory() -> tuple[int | None, int | None]:
    """Return total and available memory."""
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
    """Return the first line of `NAME --version`, or the path if it prints nothing; empty if not installed."""
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
    """Return the JSON object of a response with any status, since a server answers with an error while it
    loads."""
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
