"""Read the values of a GGUF header in sequence, never beyond the end of the file."""

from __future__ import annotations

import enum
import mmap
import struct
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from corral.core.errors import InvalidRequest

_MAX_HEADER_BYTES = 256 << 20
_MAX_KEPT = 64  # elements of an array
_MAX_QUOTED = 63
_MAX_MAGIC = 16
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class ValueType(enum.IntEnum):
    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


_SCALARS: list[ValueType] = [type for type in ValueType if type not in (ValueType.STRING, ValueType.ARRAY)]
_FORMS = {type: struct.Struct(f"<{code}") for type, code in zip(_SCALARS, "BbHhIif?Qqd", strict=True)}


class Incomplete(InvalidRequest):
    def __init__(self, n_bytes: int, n_wanted: int, is_least: bool = False) -> None:
        """`is_least`: the full size is unknown, but at least `n_wanted`."""
        self.n_bytes, self.n_wanted = n_bytes, n_wanted
        wanted = f"{'at least ' if is_least else ''}{n_wanted:,}"
        super().__init__(
            f"the file is incomplete: it has {n_bytes:,} of {wanted} bytes. The download was probably "
            "interrupted; download it again"
        )


@dataclass(frozen=True, slots=True)
class Omitted:
    """An array that is too long to keep."""

    n: int


Scalar: TypeAlias = int | float | bool | str
Value: TypeAlias = Scalar | tuple[Scalar, ...] | Omitted


class GgufReader:
    """Parses a header from front to back. Raises InvalidRequest if it is invalid."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._end = min(len(data), _MAX_HEADER_BYTES)
        self.offset = 0

    @property
    def start(self) -> bytes:
        """The first bytes, enough to identify the format."""
        return self._data[:_MAX_MAGIC]

    def take(self, n_bytes: int) -> bytes:
        start = self.offset
        self._skip(n_bytes)
        return self._data[start : self.offset]

    def u32(self) -> int:
        return int(_U32.unpack(self.take(_U32.size))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(_U64.size))[0])

    def name(self, what: str, max_bytes: int) -> str:
        """Read a text that is neither empty nor too long, and contains no zero byte."""
        n_bytes = self.u64()
        if not 1 <= n_bytes <= max_bytes:
            raise InvalidRequest(f"{what} has {n_bytes} bytes; it must have 1 to {max_bytes}")
        text = self.take(n_bytes)
        if b"\0" in text:
            raise InvalidRequest(f"{what} contains a zero byte")
        try:
            return text.decode()
        except UnicodeDecodeError:
            raise InvalidRequest(f"{what} is not UTF-8") from None

    def value_type(self, key: str) -> ValueType:
        number = self.u32()
        try:
            return ValueType(number)
        except ValueError:
            raise InvalidRequest(f"the value of {quoted(key)} has the unknown type {number}") from None

    def value(self, key: str, type: ValueType) -> Value:
        return self._array(key) if type is ValueType.ARRAY else self._scalar(type)

    def _scalar(self, type: ValueType) -> Scalar:
        if type is ValueType.STRING:
            return self.take(self.u64()).decode("utf-8", "replace")
        form = _FORMS[type]
        value: Scalar = form.unpack(self.take(form.size))[0]
        return value

    def _array(self, key: str) -> Value:
        type, n = self.value_type(key), self.u64()
        if type is ValueType.ARRAY:
            raise InvalidRequest(f"the value of {quoted(key)} is an array of arrays")
        if n <= _MAX_KEPT:
            return tuple(self._scalar(type) for _ in range(n))
        if type is ValueType.STRING:
            self._skip_strings(n)
        else:
            self._skip(n * _FORMS[type].size)
        return Omitted(n)

    def _skip(self, n_bytes: int) -> None:
        if self.offset + n_bytes > self._end:
            self._refuse(self.offset + n_bytes)
        self.offset += n_bytes

    def _skip_strings(self, n: int) -> None:
        """Skip strings fast: a vocabulary has hundreds of thousands."""
        if self.offset + n * _U64.size > self._end:
            self._refuse(self.offset + n * _U64.size)
        data, offset, unpack = self._data, self.offset, _U64.unpack_from
        try:
            for _ in range(n):
                offset += _U64.size + unpack(data, offset)[0]
        except (struct.error, OverflowError):
            self._refuse(offset + _U64.size)
        self._skip(offset - self.offset)

    def _refuse(self, n_bytes: int) -> NoReturn:
        if len(self._data) < n_bytes <= _MAX_HEADER_BYTES:
            raise Incomplete(len(self._data), n_bytes, is_least=True)
        raise InvalidRequest(f"its header is damaged, or longer than {_MAX_HEADER_BYTES >> 20} MiB")


def quoted(name: str) -> str:
    return repr(name[:_MAX_QUOTED])
