"""A model written again with its weights in another encoding: the file is there whole, or not at all.

Room, names and faults are looked after here; the work is done in another process (`requantize`). What becomes
of which tensor, libllama decides. Knows no native handles.
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

_FULL_BYTES = 1 << 20  # less than this free: whatever failed, failed for it


def transcode(
    source: str, target: Path, file_type: str, on_progress: Callable[[float], None], n_threads: int = 0
) -> None:
    """Write the model again with its weights in another encoding; a file that is there stays as it is.

    `file_type` is one of `TRANSCODABLE`; `on_progress` gets growing numbers up to 1. Whoever else is at it is
    waited for.
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
                # The child inherits the locks: they hold for as long as it writes, even if we are killed.
                fds = (dir_fd, file.fd)
                _run(source, path, TRANSCODABLE[file_type], n_threads, on_progress, fds)
                _check_result(source, headers, path)
                file.commit()
    except OSError as error:
        raise file_error(f"cannot write into '{directory}'", error) from None


def _check_room(directory: Path, n_bytes: int) -> None:
    n_free = shutil.disk_usage(directory).free
    if n_free < n_bytes:
        raise InsufficientStorage(
            f"the model in another encoding takes up to {_sized(n_bytes)} in '{directory}', "
            f"but {_sized(n_free)} are free; LLAMA_CACHE can name another directory"
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
    """What it said last, beside how far it is."""
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
    if shutil.disk_usage(directory).free < _FULL_BYTES:  # of which libllama says nothing
        return InsufficientStorage(
            f"'{directory}' has become full while the model was written into it in another encoding; "
            "LLAMA_CACHE can name another directory"
        )
    return CorralError(f"model '{source}' cannot be written in another encoding: {reason}")


def _end(returncode: int) -> str:
    if returncode > 0:
        return "no reason given"
    return f"libllama crashed ({signal.Signals(-returncode).name})"


def _check_result(source: str, headers: Sequence[GgufHeader], path: Path) -> None:
    """Whatever was written is all of the model, and all of it is there."""
    try:
        found = {name: tensor.ne for name, tensor in read_header(path).tensors.items()}
    except InvalidRequest as error:
        raise _failure(source, path.parent, f"what libllama wrote is wrong: {error.message}") from None
    if found != {name: tensor.ne for header in headers for name, tensor in header.tensors.items()}:
        raise _failure(source, path.parent, "libllama wrote other tensors")


def _sized(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.2f} GiB"
