"""What was found out about a model on this machine, kept in the cache beside what was made of it."""

from __future__ import annotations

import contextlib
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
from corral.tuning.trial import Speed

_DIRECTORY = "tuned"
_PIECE_BYTES = 8 << 20
_ENCODER_VERSION = 1  # another one makes files anew
_CHOICE_VERSION = 2  # of how is chosen: another one chooses anew


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """`encoding`: none is the file as it is. Numbers of 0 say nothing. `gain` is over the file as it is."""

    encoding: str = ""
    n_threads: int = 0
    n_threads_batch: int = 0
    n_ubatch: int = 0
    gain: Speed = Speed(1.0, 1.0, 1.0)


def content_hash(model: str) -> str:
    """Of all bytes of a model; remembered for as long as its files look untouched."""
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
    """The same if it is remembered, without reading the files."""
    with contextlib.suppress(OSError):
        return _memo(model).read_text()
    return ""


def transcoded_path(hash: str, encoding: str) -> Path:
    return cache_dir() / f"{TRANSCODED}{hash}-{_ENCODER_VERSION}-{encoding}.gguf"


def read_choice(hash: str) -> Choice | None:
    try:
        return msgspec.json.decode(_choice_path(hash).read_bytes(), type=Choice)
    except (OSError, msgspec.MsgspecError):
        return None


def write_choice(hash: str, choice: Choice) -> Path:
    path = _choice_path(hash)
    _write(path, msgspec.json.format(msgspec.json.encode(choice)))
    return path


@contextlib.contextmanager
def alone_with(hash: str) -> Iterator[None]:
    """No other process finds out about this model, or makes something of it, meanwhile."""
    directory = _directory()
    lock = FileLock(directory / f"{hash}.lock")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise file_error(f"cannot write into '{directory}'", error) from None
    try:
        yield
    finally:
        lock.release()


def _choice_path(hash: str) -> Path:
    return _directory() / f"{hash}-{_machine()}.json"


def _machine() -> str:
    """What speed depends on: the CPU, how much of it there is, and how libllama was built."""
    facts = (
        lib.llama_print_system_info(),
        platform.processor() or platform.machine(),
        _cpu_name(),
        physical_cores(),
        psutil.cpu_count(),
        _CHOICE_VERSION,
    )
    return xxhash.xxh3_64_hexdigest(repr(facts).encode())


def _cpu_name() -> str:
    """Where the system tells it in a file."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        names = ("model name", "CPU part", "CPU implementer")
        return " ".join(sorted({line for line in lines if line.startswith(names)}))
    return ""


def _memo(model: str) -> Path:
    """Where its hash is remembered, by the looks of its files; raises OSError if there are none."""
    looks = [
        (os.path.realpath(part), os.stat(part).st_size, os.stat(part).st_mtime_ns)
        for part in part_names(model)
    ]
    return _directory() / f"{xxhash.xxh3_128_hexdigest(repr(looks).encode())}.hash"


def _directory() -> Path:
    return cache_dir() / _DIRECTORY


def _write(path: Path, data: bytes) -> None:
    """Whole, or not at all; what cannot be written is found out again."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(data)
