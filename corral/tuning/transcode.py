"""Write a model again with its weights in another encoding, atomically.

Checks disk space, names and errors; `requantize` does the work in another process. libllama chooses the
type of each tensor. Uses no native handles.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from corral.core.atomic_file import AtomicFile, lock_directory
from corral.core.errors import CorralError, InsufficientStorage, InvalidRequest
from corral.core.file import file_error
from corral.gguf.encoded_size import estimated_bytes
from corral.gguf.file_type import TRANSCODABLE
from corral.gguf.model_file import read_model
from corral.gguf.preflight import GgufHeader, read_header

_FULL_BYTES = 1 << 20  # with less free space, any failure counts as a full disk


def transcode(
    source: str, target: Path, file_type: str, on_progress: Callable[[float], None], n_threads: int = 0
) -> None:
    """Write the model with its weights in another encoding, unless the file exists.

    `file_type`: one of `TRANSCODABLE`; `on_progress` gets growing numbers up to 1. Waits for other
    processes that write the same file.
    """
    _, headers = read_model(source)
    directory = target.parent
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with lock_directory(directory) as dir_fd:
            if target.exists():
                return
            _check_room(directory, estimated_bytes(headers, file_type))
            with AtomicFile(dir_fd, target.name) as file:
                path = directory / file.temporary
                # The child inherits the locks: they hold while it writes, even if this process is killed.
                fds = (dir_fd, file.fd)
                _run(source, path, TRANSCODABLE[file_type], n_threads, on_progress, fds)
                _check_result(source, headers, path)
                file.commit()
    except OSError as error:
        raise file_error(f"cannot write to '{directory}'", error) from None


def _check_room(directory: Path, n_bytes: int) -> None:
    n_free = shutil.disk_usage(directory).free
    if n_free < n_bytes:
        raise InsufficientStorage(
            f"re-encoding the model takes up to {_sized(n_bytes)} in '{directory}', but "
            f"{_sized(n_free)} are free; set LLAMA_CACHE to another directory"
        )


def _run(
    source: str,
    path: Path,
    number: int,
    n_threads: int,
    on_progress: Callable[[float], None],
    inherited: Sequence[int],
) -> None:
    words = [source, str(path), str(number), str(n_threads)]
    with subprocess.Popen(
        [sys.executable, "-m", "corral.tuning.requantize", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=inherited,
    ) as process:
        try:
            reason = _follow(process, on_progress)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise _failure(source, path.parent, reason or _end(process.returncode))


def _follow(process: subprocess.Popen[bytes], on_progress: Callable[[float], None]) -> str:
    """Read the progress of the process, and return its last other line."""
    reason = ""
    assert process.stdout
    for line in process.stdout:
        try:
            fraction = float(line)
        except ValueError:
            reason = line.decode("utf-8", "replace").strip() or reason
        else:
            on_progress(fraction)
    return reason


def _failure(source: str, directory: Path, reason: str) -> CorralError:
    if shutil.disk_usage(directory).free < _FULL_BYTES:  # libllama does not report it
        return InsufficientStorage(
            f"no space left in '{directory}' while re-encoding the model; set LLAMA_CACHE to another "
            "directory"
        )
    return CorralError(f"model '{source}' cannot be re-encoded: {reason}")


def _end(returncode: int) -> str:
    if returncode > 0:
        return "no reason given"
    return f"libllama crashed ({signal.Signals(-returncode).name})"


def _check_result(source: str, headers: Sequence[GgufHeader], path: Path) -> None:
    """Check that the written file is complete and has all tensors of the model."""
    try:
        found = {name: tensor.ne for name, tensor in read_header(path).tensors.items()}
    except InvalidRequest as error:
        raise _failure(source, path.parent, f"libllama wrote an invalid file: {error.message}") from None
    if found != {name: tensor.ne for header in headers for name, tensor in header.tensors.items()}:
        raise _failure(source, path.parent, "libllama wrote different tensors")


def _sized(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.2f} GiB"
