"""The files of a model, checked before native code sees them: one, or parts that fit together.

Decides as libllama does, by what a file says of itself, which files belong together. Knows no native handles.
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
_OTHERS = {  # what is no model, though it is a GGUF file
    ("general.type", "adapter"): "it is an adapter, no model; adapters are given with --lora",
    ("general.type", "mmproj"): "it is a projector, no model; projectors are given with --mmproj",
    ("general.type", "imatrix"): "it is an importance matrix, no model",
    ("general.architecture", "clip"): "it is a projector, no model; projectors are given with --mmproj",
    ("general.architecture", "controlvector"): (
        "it is a control vector, no model; those are given with --control-vector"
    ),
}


def check_model_file(path: str | os.PathLike[str]) -> list[str]:
    """All files of a model, the first one first; raises CorralError if one is missing, or wrong."""
    parts, _ = read_model(path)
    return parts


def read_model(path: str | os.PathLike[str]) -> tuple[list[str], list[GgufHeader]]:
    """The files of a model as `check_model_file` finds them, and their headers."""
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
    """Refuse what is not a LoRA adapter for this model."""
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
    """The names of all parts of a model, which that of one tells, with its path if it has one."""
    found = _PART.fullmatch(name)
    if found is None:
        return [name]
    stem, _, n = found.groups()
    return [f"{stem}-{i:05}-of-{n}.gguf" for i in range(1, int(n) + 1)] or [name]


def _read(path: str) -> GgufHeader:
    try:
        return read_header(path)
    except FileNotFoundError:
        raise InvalidRequest("there is no such file") from None
    except OSError as error:
        raise InvalidRequest(f"it cannot be read: {error.strerror}") from None


def _read_others(path: str, parts: list[str]) -> list[GgufHeader]:
    missing = [part for part in parts if not os.path.exists(part)]
    if missing:
        names = ", ".join(f"'{os.path.basename(part)}'" for part in missing[:_MAX_NAMED])
        more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
        raise _refusal(path, f"it has {len(parts)} parts, but beside it there is no {names}{more}")
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
        raise InvalidRequest(f"it is part {no + 1} of {n}; the one to give is the first{where}")
    if len(parts) != n or parts[0] != path:
        raise InvalidRequest(f"it is the first of {n} parts; they have to be named NAME-00001-of-{n:05}.gguf")
    return parts


def _check_part(header: GgufHeader, i: int, n: int) -> None:
    theirs = _number(header, _COUNT, 0)
    if theirs != n:
        raise InvalidRequest(f"it says that the model has {theirs} parts, the first one says {n}")
    no = _number(header, _NO, -1)
    if no != i:
        raise InvalidRequest(f"it says that it is part {no + 1}")


def _check_together(headers: list[GgufHeader]) -> None:
    seen: set[str] = set()
    for header in headers:
        twice = seen.intersection(header.tensors)
        if twice:
            raise InvalidRequest(f"the tensor {quoted(min(twice))} is in two of its parts")
        seen.update(header.tensors)
    if not seen:
        raise InvalidRequest("it has no tensors: this is the vocabulary of a model at best")
    n = _number(headers[0], _N_TENSORS, len(seen))
    if len(headers) > 1 and n != len(seen):
        raise InvalidRequest(
            f"it is to have {n} tensors, but in its {len(headers)} parts there are {len(seen)}"
        )


def _number(header: GgufHeader, key: str, default: int) -> int:
    value = header.metadata.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequest(f"the value of '{key}' is not a whole number")
    return value


def _refusal(path: str, reason: str) -> CorralError:
    return CorralError(f"model '{path}': {reason}")
