"""`--lora-base`: take the weights that adapters change from a less quantized copy of the model.

libllama reads one file, so one is written once and kept: metadata and all other weights are copied from
the model. No native code; runs before the model is opened.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import xxhash

from corral.core.atomic_file import atomic_write, lock_directory
from corral.core.cache_dir import cache_dir
from corral.core.errors import CorralError, InsufficientStorage, InvalidRequest
from corral.core.file import file_error, read_into, write_all
from corral.core.settings import EngineSettings
from corral.gguf.fingerprint import fingerprint
from corral.gguf.preflight import GgufHeader, TensorInfo, adapted, check_adapter, padded, read_header

_PIECE_BYTES = 8 << 20


def with_lora_base(settings: EngineSettings) -> EngineSettings:
    """Return the settings with the model file that `--lora-base` requires."""
    if not settings.lora_base:
        return settings
    adapters = [file.path for file in settings.lora if file.path]
    if not adapters:
        raise CorralError("--lora-base has no effect without --lora or --lora-scaled")
    path = rebased(settings.model, settings.lora_base, adapters, cache_dir())
    return msgspec.structs.replace(settings, model=path)


def rebased(model: str, base: str, adapters: Sequence[str], directory: Path) -> str:
    """Return the path of a copy of `model` with the weights that any adapter changes taken from `base`."""
    header, better = _read_whole(model), _read_whole(base).tensors
    names = _changed(adapters, header.architecture)
    _check_base(header.tensors, better, names)
    # Only the names of changed weights count: a retrained adapter needs no other file.
    digest = xxhash.xxh3_128(fingerprint(model) + fingerprint(base) + "\n".join(sorted(names)).encode())
    target = directory / f"lora-base-{digest.hexdigest()}.gguf"
    if not target.exists():
        sources = {
            name: _Source(base, better[name]) if name in names else _Source(model, tensor)
            for name, tensor in header.tensors.items()
        }
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(target, model, header, sources)
        except OSError as error:
            raise file_error(f"--lora-base: cannot write to '{directory}'", error) from None
    return str(target)


class _Source(NamedTuple):
    """A tensor, and the file it is in."""

    path: str
    tensor: TensorInfo


def _read_whole(path: str) -> GgufHeader:
    with _told_with(path):
        header = read_header(path)
        if header.is_split:
            raise InvalidRequest("--lora-base does not support models that are split into several files")
        return header


def _changed(adapters: Sequence[str], architecture: str) -> set[str]:
    """Return the names of all weights that the adapters change."""
    names: set[str] = set()
    for path in adapters:
        header = _read_whole(path)
        with _told_with(path):
            check_adapter(header, architecture)
            names.update(adapted(header))
    return names


def _check_base(weights: Mapping[str, TensorInfo], better: Mapping[str, TensorInfo], names: set[str]) -> None:
    for name in sorted(names):
        if name not in weights:
            raise CorralError(f"--lora: an adapter modifies '{name}', which the model does not have")
        if name not in better:
            raise CorralError(f"--lora-base: this file has no '{name}', which an adapter modifies")
        if better[name].shape != weights[name].shape:
            theirs, ours = (" x ".join(map(str, t[name].shape)) for t in (better, weights))
            raise CorralError(f"--lora-base: '{name}' has the shape {theirs}, but {ours} in the model")


def _write(target: Path, model: str, header: GgufHeader, sources: Mapping[str, _Source]) -> None:
    with lock_directory(target.parent):
        if not target.exists():  # another server may have written it while we waited
            with atomic_write(target) as file:
                _fill(file.fileno(), target.parent, model, header, sources)


def _fill(fd: int, directory: Path, model: str, header: GgufHeader, sources: Mapping[str, _Source]) -> None:
    sizes = (padded(source.tensor.n_bytes, header.alignment) for source in sources.values())
    *offsets, n_data_bytes = itertools.accumulate(sizes, initial=0)
    places = dict(zip(sources, offsets, strict=True))
    infos = b"".join(_pack_info(name, source.tensor, places[name]) for name, source in sources.items())
    start = padded(header.infos_offset + len(infos), header.alignment)
    _check_room(directory, start + n_data_bytes)
    buffer = memoryview(bytearray(_PIECE_BYTES))
    _copy(fd, model, 0, header.infos_offset, buffer)
    write_all(fd, infos)
    for name, (path, tensor) in sources.items():
        os.lseek(fd, start + places[name], os.SEEK_SET)
        _copy(fd, path, tensor.offset, tensor.n_bytes, buffer)
    os.ftruncate(fd, start + n_data_bytes)


def _pack_info(name: str, tensor: TensorInfo, offset: int) -> bytes:
    encoded, n_dims = name.encode(), len(tensor.shape)
    form = f"<Q{len(encoded)}sI{n_dims}QIQ"
    return struct.pack(form, len(encoded), encoded, n_dims, *tensor.shape, tensor.type, offset)


def _check_room(directory: Path, n_bytes: int) -> None:
    n_free = shutil.disk_usage(directory).free
    if n_free < n_bytes:
        needed, free = (f"{n / 2**30:.2f} GiB" for n in (n_bytes, n_free))
        raise InsufficientStorage(
            f"--lora-base needs {needed} in '{directory}', but {free} are free; set LLAMA_CACHE to "
            "another directory"
        )


def _copy(fd: int, path: str, offset: int, n_bytes: int, buffer: memoryview) -> None:
    with open(path, "rb", buffering=0) as source:
        for start in range(0, n_bytes, len(buffer)):
            piece = buffer[: n_bytes - start]
            if read_into(source.fileno(), offset + start, piece) < len(piece):
                raise CorralError(f"'{path}' was truncated while it was read")
            write_all(fd, piece)


@contextlib.contextmanager
def _told_with(path: str) -> Iterator[None]:
    """Add the file's name to errors."""
    try:
        yield
    except InvalidRequest as error:
        raise CorralError(f"'{path}': {error.message}") from None
    except OSError as error:
        raise CorralError(f"cannot read '{path}': {error.strerror}") from None
