"""Tuning profiles: the fastest settings of a model on this machine, stored in the cache."""

from __future__ import annotations

import contextlib
import math
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import xxhash
from filelock import FileLock

from corral.core.atomic_file import atomic_write
from corral.core.cache_dir import cache_dir
from corral.core.file import file_error
from corral.gguf.file_type import TRANSCODED
from corral.gguf.model_file import check_model_file, part_names
from corral.llama.hardware import physical_cores
from corral.llama.library import lib

_DIRECTORY = "tuned"
_PIECE_BYTES = 8 << 20
_ENCODER_VERSION = 1  # of re-encoded files; a change re-encodes them
_PROFILE_VERSION = 2  # of profiles; a change invalidates them


class Speed(msgspec.Struct, frozen=True):
    """Tokens per second: of a prompt, of one stream, and of four streams together."""

    prompt: float
    one: float
    four: float

    @property
    def mean(self) -> float:
        return math.prod((self.prompt, self.one, self.four)) ** (1 / 3)

    @property
    def least(self) -> float:
        return min(self.prompt, self.one, self.four)

    def __str__(self) -> str:
        """Format as a ratio."""
        return f"prompts {self.prompt:.2f} x, one stream {self.one:.2f} x, four streams {self.four:.2f} x"

    def over(self, other: Speed) -> Speed:
        return Speed(self.prompt / other.prompt, self.one / other.one, self.four / other.four)


class TuningProfile(msgspec.Struct, frozen=True, kw_only=True):
    """An empty `encoding` means that of the file, 0 the default. `gain`: relative to the file as it is."""

    encoding: str = ""
    n_threads: int = 0
    n_threads_batch: int = 0
    n_ubatch: int = 0
    gain: Speed = Speed(1.0, 1.0, 1.0)


def content_hash(model: str) -> str:
    """Hash all bytes of a model; cached while size and mtime of its files stay the same."""
    if known := known_hash(model):
        return known
    digest = xxhash.xxh3_128()
    for part in check_model_file(model):
        with open(part, "rb") as file:
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)
    with contextlib.suppress(OSError):
        _write(_memo(model), digest.hexdigest().encode())
    return digest.hexdigest()


def known_hash(model: str) -> str:
    """Return the cached hash without reading the files; empty if there is none."""
    with contextlib.suppress(OSError):
        return _memo(model).read_text()
    return ""


def transcoded_path(hash: str, encoding: str) -> Path:
    return cache_dir() / f"{TRANSCODED}{hash}-{_ENCODER_VERSION}-{encoding}.gguf"


def read_profile(hash: str) -> TuningProfile | None:
    try:
        return msgspec.json.decode(_profile_path(hash).read_bytes(), type=TuningProfile)
    except (OSError, msgspec.MsgspecError):
        return None


def write_profile(hash: str, profile: TuningProfile) -> Path:
    path = _profile_path(hash)
    _write(path, msgspec.json.format(msgspec.json.encode(profile)))
    return path


@contextlib.contextmanager
def lock_model(hash: str) -> Iterator[None]:
    """Hold a lock against other processes that tune this model."""
    directory = _directory()
    lock = FileLock(directory / f"{hash}.lock")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise file_error(f"cannot write to '{directory}'", error) from None
    try:
        yield
    finally:
        lock.release()


def _profile_path(hash: str) -> Path:
    return _directory() / f"{hash}-{_machine()}.json"


def _machine() -> str:
    """Hash what speed depends on: the CPU, its cores, and the build of libllama."""
    facts = (
        lib.llama_print_system_info(),
        platform.processor() or platform.machine(),
        _cpu_name(),
        physical_cores(),
        psutil.cpu_count(),
        _PROFILE_VERSION,
    )
    return xxhash.xxh3_64_hexdigest(repr(facts).encode())


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        names = ("model name", "CPU part", "CPU implementer")
        return " ".join(sorted({line for line in lines if line.startswith(names)}))
    return ""


def _memo(model: str) -> Path:
    """Return where the hash is cached. Raises OSError if a file is missing."""
    looks = [
        (os.path.realpath(part), os.stat(part).st_size, os.stat(part).st_mtime_ns)
        for part in part_names(model)
    ]
    return _directory() / f"{xxhash.xxh3_128_hexdigest(repr(looks).encode())}.hash"


def _directory() -> Path:
    return cache_dir() / _DIRECTORY


def _write(path: Path, data: bytes) -> None:
    """Write atomically. Failures are ignored: the value is computed again."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(data)
