"""Check the files of a model, one or several parts, before native code opens them.

Decides as libllama does, by the content of a file, which files belong together. Uses no native handles.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter

from corral.core.errors import CorralError, InvalidRequest
from corral.gguf.preflight import GgufHeader, check_adapter, check_fit, read_header
from corral.gguf.reader import quoted

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
_NO, _COUNT, _N_TENSORS = "split.no", "split.count", "split.tensors.count"
_MAX_NAMED = 3  # files in a message
_OTHERS = {  # GGUF files that are not models
    ("general.type", "adapter"): "it is an adapter, not a model; pass adapters with --lora",
    ("general.type", "mmproj"): "it is a projector, not a model; pass projectors with --mmproj",
    ("general.type", "imatrix"): "it is an importance matrix, not a model",
    ("general.architecture", "clip"): "it is a projector, not a model; pass projectors with --mmproj",
    ("general.architecture", "controlvector"): (
        "it is a control vector, not a model; pass control vectors with --control-vector"
    ),
}


def check_model_file(path: str | os.PathLike[str]) -> list[str]:
    """Return all files of a model, the first part first. Raises CorralError if one is missing or invalid."""
    parts, _ = read_model(path)
    return parts


def read_model(path: str | os.PathLike[str]) -> tuple[list[str], list[GgufHeader]]:
    """Return the files of a model, as `check_model_file` does, and their headers."""
    path = os.fspath(path)
    try:
        first = _read(path)
        _refuse_others(first)
        parts = _list_parts(path, first)
    except InvalidRequest as error:
        raise _refusal(path, error.message) from None
    headers = [first, *_read_others(path, parts)]
    try:
        _check_together(headers)
    except InvalidRequest as error:
        raise _refusal(path, error.message) from None
    return parts, headers


def check_adapter_for(model: str, adapter: GgufHeader) -> None:
    """Raise unless the file is a LoRA adapter for this model."""
    parts = [read_header(part) for part in part_names(model)]
    check_adapter(adapter, parts[0].architecture)
    check_fit(adapter, {name: info for part in parts for name, info in part.tensors.items()})


def main_type(path: str) -> int:
    _, headers = read_model(path)
    sizes: Counter[int] = Counter()
    for header in headers:
        for tensor in header.tensors.values():
            sizes[tensor.type] += math.prod(tensor.shape)
    return sizes.most_common(1)[0][0]


def part_names(name: str) -> list[str]:
    """Return the names, or paths, of all parts of a model, derived from that of one part."""
    found = _PART.fullmatch(name)
    if found is None:
        return [name]
    stem, _, n = found.groups()
    return [f"{stem}-{i:05}-of-{n}.gguf" for i in range(1, int(n) + 1)] or [name]


def _read(path: str) -> GgufHeader:
    try:
        return read_header(path)
    except FileNotFoundError:
        raise InvalidRequest("the file does not exist") from None
    except OSError as error:
        raise InvalidRequest(f"it cannot be read: {error.strerror}") from None


def _read_others(path: str, parts: list[str]) -> list[GgufHeader]:
    missing = [part for part in parts if not os.path.exists(part)]
    if missing:
        names = ", ".join(f"'{os.path.basename(part)}'" for part in missing[:_MAX_NAMED])
        more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
        raise _refusal(path, f"it has {len(parts)} parts, but its directory lacks {names}{more}")
    headers = []
    for i, part in enumerate(parts[1:], 1):
        try:
            header = _read(part)
            _check_part(header, i, len(parts))
        except InvalidRequest as error:
            raise _refusal(part, f"{error.message} (part {i + 1} of {len(parts)})") from None
        headers.append(header)
    return headers


def _refuse_others(header: GgufHeader) -> None:
    for (key, value), reason in _OTHERS.items():
        if header.metadata.get(key) == value:
            raise InvalidRequest(reason)


def _list_parts(path: str, first: GgufHeader) -> list[str]:
    n = _number(first, _COUNT, 0)
    if n <= 1:
        return [path]
    parts = part_names(path)
    no = _number(first, _NO, 0)
    if no:
        where = f": '{parts[0]}'" if len(parts) == n else ""
        raise InvalidRequest(f"it is part {no + 1} of {n}; pass the first part{where}")
    if len(parts) != n or parts[0] != path:
        raise InvalidRequest(f"it is the first of {n} parts; they must be named NAME-00001-of-{n:05}.gguf")
    return parts


def _check_part(header: GgufHeader, i: int, n: int) -> None:
    theirs = _number(header, _COUNT, 0)
    if theirs != n:
        raise InvalidRequest(f"it declares {theirs} parts, but the first part declares {n}")
    no = _number(header, _NO, -1)
    if no != i:
        raise InvalidRequest(f"it declares to be part {no + 1}")


def _check_together(headers: list[GgufHeader]) -> None:
    seen: set[str] = set()
    for header in headers:
        twice = seen.intersection(header.tensors)
        if twice:
            raise InvalidRequest(f"the tensor {quoted(min(twice))} is in two of the parts")
        seen.update(header.tensors)
    if not seen:
        raise InvalidRequest("it has no tensors; it may be only a vocabulary")
    n = _number(headers[0], _N_TENSORS, len(seen))
    if len(headers) > 1 and n != len(seen):
        raise InvalidRequest(f"it declares {n} tensors, but its {len(headers)} parts have {len(seen)}")


def _number(header: GgufHeader, key: str, default: int) -> int:
    value = header.metadata.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequest(f"the value of '{key}' is not an integer")
    return value


def _refusal(path: str, reason: str) -> CorralError:
    return CorralError(f"model '{path}': {reason}")
