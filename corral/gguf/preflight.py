"""Check GGUF files before native code opens them: the layout, and that all of it is in the file.

Reads the headers of little-endian files of versions 2 and 3 through a mapping, and never tensor data, so
the size does not matter. Uses no native handles and does not name paths; any thread.
"""

from __future__ import annotations

import math
import mmap
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from corral.core.errors import InvalidRequest
from corral.gguf.ggml_type import GGML_TYPES
from corral.gguf.reader import GgufReader, Incomplete, Value, ValueType, quoted

_MAGIC = b"GGUF"
_OTHER_MAGICS = (  # formats that are mistaken for GGUF
    (
        (b"lmgg", b"fmgg", b"tjgg", b"algg"),
        "a GGML file, the format before GGUF: download a GGUF file, or convert the model again",
    ),
    ((b"version http",), "a Git LFS pointer: download the file itself"),
    (
        (b"<!doctype", b"<!DOCTYPE", b"<html", b"<HTML"),
        "an HTML page: the link pointed to a page, not to a file",
    ),
    ((b"PK\3\4",), "a ZIP archive, perhaps from PyTorch: convert the model to GGUF"),
    ((b"\x80\x02}", b"\x80\x02\x8a"), "a PyTorch file: convert the model to GGUF"),
)
_VERSIONS = (2, 3)
_ALIGNMENT = "general.alignment"
_DEFAULT_ALIGNMENT = 32
_MAX_ENTRIES = 1 << 16  # tensors, or keys
_MAX_KEY_BYTES = (1 << 16) - 1
_MAX_NAME_BYTES = 63
_MAX_DIMS = 4
_MAX_FILE_BYTES = 1 << 44  # larger than any file, so the header is invalid
_ALPHA = "adapter.lora.alpha"
_A, _B = ".lora_a", ".lora_b"
_IGNORED = "_norm.weight"  # by libllama
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # opening a pipe does not block


class TensorInfo(NamedTuple):
    """The location of a tensor in its file. `type`: one of `GGML_TYPES`; `shape`: the row length first."""

    type: int
    shape: tuple[int, ...]
    offset: int
    n_bytes: int

    @property
    def ne(self) -> tuple[int, ...]:
        """The shape with ggml's number of dimensions."""
        return (*self.shape, 1, 1, 1)[:_MAX_DIMS]


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Everything before the tensor data. Bytes before `infos_offset` do not depend on the tensors."""

    metadata: Mapping[str, Value]
    types: Mapping[str, ValueType]  # of the metadata
    tensors: Mapping[str, TensorInfo]  # in file order
    alignment: int
    infos_offset: int

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    @property
    def is_split(self) -> bool:
        """Whether the file is one of several parts of a model."""
        return self.metadata.get("split.count", 1) not in (0, 1)


def read_header(path: str | os.PathLike[str]) -> GgufHeader:
    """Read the header. Raises InvalidRequest unless everything it describes is in the file, OSError if it
    cannot be opened."""
    fd = os.open(path, _READ)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise InvalidRequest("it is not a regular file")
        with _mapped(fd) as data:
            return _read(data)
    finally:
        os.close(fd)


def check_adapter(header: GgufHeader, architecture: str) -> None:
    """Raise unless it is a LoRA adapter for this architecture that libllama can load safely."""
    metadata = header.metadata
    if metadata.get("general.type") != "adapter" or metadata.get("adapter.type") != "lora":
        raise InvalidRequest("it is not a LoRA adapter")
    if header.architecture != architecture:
        theirs = quoted(header.architecture)
        raise InvalidRequest(f"the adapter is for {theirs} models, but the model is {quoted(architecture)}")
    alpha = metadata.get(_ALPHA, 0.0)
    is_float = header.types.get(_ALPHA, ValueType.FLOAT32) is ValueType.FLOAT32
    if not is_float or not isinstance(alpha, float) or not math.isfinite(alpha):
        raise InvalidRequest(f"the adapter's value of '{_ALPHA}' is not a 32-bit float")
    for name, (a, b) in adapted(header).items():
        _check_pair(name, a, b)


def check_fit(header: GgufHeader, weights: Mapping[str, TensorInfo]) -> None:
    """Raise if the tensors of a checked adapter do not fit the model's. libllama reports missing ones."""
    for name, (a, b) in adapted(header).items():
        n_in, n_out = (b.ne[1], a.ne[1]) if _is_embedding(name) else (a.ne[0], b.ne[1])
        weight = weights.get(name)
        if weight is not None and weight.ne != (n_in, n_out, *a.ne[2:]):
            raise InvalidRequest(f"the adapter's tensors for {quoted(name)} do not match the model's shape")


def adapted(header: GgufHeader) -> dict[str, tuple[TensorInfo, TensorInfo]]:
    """Return the pair of LoRA tensors for each weight that an adapter changes."""
    sides: dict[str, dict[str, TensorInfo]] = {_A: {}, _B: {}}
    for name, tensor in header.tensors.items():
        suffix = name[-len(_A) :]
        if suffix in sides:
            sides[suffix][name.removesuffix(suffix)] = tensor
        elif not name.endswith(_IGNORED):
            raise InvalidRequest(f"the adapter has a tensor {quoted(name)}, which is not a LoRA tensor")
    a, b = sides[_A], sides[_B]
    if a.keys() != b.keys():
        lonely = quoted(min(a.keys() ^ b.keys()))
        raise InvalidRequest(f"the adapter has only one of the two tensors for {lonely}")
    if not a:
        raise InvalidRequest("the adapter has no LoRA tensors")
    return {name: (a[name], b[name]) for name in a}


def padded(n_bytes: int, alignment: int) -> int:
    """Round up to where the next tensor can begin."""
    return -(-n_bytes // alignment) * alignment


def _check_pair(name: str, a: TensorInfo, b: TensorInfo) -> None:
    n_rank = a.ne[0] if _is_embedding(name) else a.ne[1]
    if n_rank != b.ne[0] or a.ne[2:] != b.ne[2:]:
        raise InvalidRequest(f"the adapter's tensors for {quoted(name)} have different ranks")
    for tensor in (a, b):
        kind = GGML_TYPES[tensor.type]
        if not kind.multiplies:
            raise InvalidRequest(
                f"the adapter's tensors for {quoted(name)} have the unsupported type {kind.name}"
            )


def _is_embedding(name: str) -> bool:
    """Whether rows of the weight are looked up, so that the adapter's tensors are not transposed."""
    return name.endswith("token_embd.weight")


def _mapped(fd: int) -> mmap.mmap:
    try:
        return mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise InvalidRequest("it is empty: download it again") from None


def _read(data: mmap.mmap) -> GgufHeader:
    reader = GgufReader(data)
    n_tensors, n_keys = _read_counts(reader)
    metadata, types = _read_metadata(reader, n_keys)
    alignment = _alignment(metadata, types)
    infos_offset = reader.offset
    infos = _read_infos(reader, n_tensors)
    start = padded(reader.offset, alignment)
    tensors = {name: info._replace(offset=start + info.offset) for name, info in infos.items()}
    _check_places(tensors, alignment, len(data))
    return GgufHeader(metadata, types, tensors, alignment, infos_offset)


def _read_counts(reader: GgufReader) -> tuple[int, int]:
    if not (reader.start.startswith(_MAGIC) or _MAGIC.startswith(reader.start)):
        raise InvalidRequest(f"it is not a GGUF file{_told_apart(reader.start)}")
    reader.take(len(_MAGIC))
    version = reader.u32()
    if version not in _VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        what = "big-endian files" if swapped in _VERSIONS else f"files of version {version}"
        remedy = ": convert the model again" if version < min(_VERSIONS) or swapped in _VERSIONS else ""
        raise InvalidRequest(f"GGUF {what} are not supported{remedy}")
    n_tensors, n_keys = reader.u64(), reader.u64()
    for what, n in (("tensors", n_tensors), ("keys", n_keys)):
        if n > _MAX_ENTRIES:
            raise InvalidRequest(f"it declares {n} {what}; the limit is {_MAX_ENTRIES}")
    return n_tensors, n_keys


def _told_apart(start: bytes) -> str:
    """Name the format of a file by its first bytes, if it is known."""
    for magics, what in _OTHER_MAGICS:
        if start.startswith(magics):
            return f", but {what}"
    if start[8:10] == b'{"':
        return ", but a safetensors file: convert the model to GGUF"
    return ""


def _read_metadata(reader: GgufReader, n: int) -> tuple[dict[str, Value], dict[str, ValueType]]:
    metadata: dict[str, Value] = {}
    types: dict[str, ValueType] = {}
    for _ in range(n):
        key = reader.name("a key", _MAX_KEY_BYTES)
        if key in metadata:
            raise InvalidRequest(f"the key {quoted(key)} occurs twice")
        types[key] = reader.value_type(key)
        metadata[key] = reader.value(key, types[key])
    return metadata, types


def _alignment(metadata: Mapping[str, Value], types: Mapping[str, ValueType]) -> int:
    alignment = metadata.get(_ALIGNMENT, _DEFAULT_ALIGNMENT)
    is_number = types.get(_ALIGNMENT, ValueType.UINT32) is ValueType.UINT32
    if not is_number or not isinstance(alignment, int) or alignment.bit_count() != 1:
        raise InvalidRequest("its alignment is not a power of two")
    return alignment


def _read_infos(reader: GgufReader, n: int) -> dict[str, TensorInfo]:
    """Read the tensor infos; offsets are still relative to the end of the header."""
    infos: dict[str, TensorInfo] = {}
    for _ in range(n):
        name = reader.name("the name of a tensor", _MAX_NAME_BYTES)
        if name in infos:
            raise InvalidRequest(f"the tensor {quoted(name)} occurs twice")
        infos[name] = _read_info(reader, name)
    return infos


def _read_info(reader: GgufReader, name: str) -> TensorInfo:
    n_dims = reader.u32()
    if not 1 <= n_dims <= _MAX_DIMS:
        raise InvalidRequest(f"the tensor {quoted(name)} has {n_dims} dimensions, not 1 to {_MAX_DIMS}")
    shape = tuple(reader.u64() for _ in range(n_dims))
    if 0 in shape:
        raise InvalidRequest(f"the tensor {quoted(name)} is empty")
    type = reader.u32()
    kind = GGML_TYPES.get(type)
    if kind is None:
        raise InvalidRequest(f"the tensor {quoted(name)} has the unknown type {type}")
    if shape[0] % kind.n_values:
        raise InvalidRequest(
            f"the tensor {quoted(name)} has rows of {shape[0]} values, which is not a multiple of "
            f"{kind.name}'s block size"
        )
    n_bytes = math.prod(shape) // kind.n_values * kind.n_bytes
    return TensorInfo(type, shape, reader.u64(), n_bytes)


def _check_places(tensors: Mapping[str, TensorInfo], alignment: int, n_file_bytes: int) -> None:
    for name, tensor in tensors.items():
        if tensor.offset % alignment:
            raise InvalidRequest(f"the tensor {quoted(name)} is not aligned to {alignment} bytes")
        if tensor.offset + tensor.n_bytes > _MAX_FILE_BYTES:
            raise InvalidRequest(f"its header is damaged: the tensor {quoted(name)} cannot be that large")
    end = max((tensor.offset + tensor.n_bytes for tensor in tensors.values()), default=0)
    if end > n_file_bytes:
        raise Incomplete(n_file_bytes, end)
