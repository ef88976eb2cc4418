"""Probabilities of many tokens as one value: packed, since there may be as many as the vocabulary has tokens.

Processes send them to each other as bytes, which takes no time to decode; who reads them unpacks them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import msgspec

_ID_BYTES, _PROB_BYTES = 4, 8


class TokenProb(msgspec.Struct, frozen=True, array_like=True, gc=False):
    id: int
    prob: float


class TopProbs(Sequence[TokenProb]):
    """Immutable. `data`: all ids as int32, then all probabilities as float64."""

    __slots__ = ("_n", "data")

    def __init__(self, data: bytes = b"") -> None:
        self.data = data
        self._n = len(data) // (_ID_BYTES + _PROB_BYTES)

    @classmethod
    def of(cls, probs: Iterable[TokenProb]) -> TopProbs:
        known = list(probs)
        ids, numbers = array("i", (p.id for p in known)), array("d", (p.prob for p in known))
        return cls(ids.tobytes() + numbers.tobytes())

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[TokenProb]:
        return map(TokenProb, self._ids(), self._probs())

    @overload
    def __getitem__(self, at: int) -> TokenProb: ...
    @overload
    def __getitem__(self, at: slice) -> TopProbs: ...
    def __getitem__(self, at: int | slice) -> TokenProb | TopProbs:
        ids, probs = self._ids(), self._probs()
        if isinstance(at, slice):
            return TopProbs(ids[at].tobytes() + probs[at].tobytes())
        return TokenProb(ids[at], probs[at])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"TopProbs.of({list(self)!r})"

    def _ids(self) -> memoryview[int]:
        return memoryview(self.data)[: self._n * _ID_BYTES].cast("i")

    def _probs(self) -> memoryview[float]:
        return memoryview(self.data)[self._n * _ID_BYTES :].cast("d")


def encode_hook(value: Any) -> bytes:
    """What `msgspec` does not know how to encode."""
    if isinstance(value, TopProbs):
        return value.data
    raise NotImplementedError(f"cannot encode {type(value)}")


def decode_hook(kind: type, value: Any) -> Any:
    """The reverse; a list of pairs is packed."""
    if kind is not TopProbs:
        raise NotImplementedError(f"cannot decode {kind}")
    return TopProbs(value) if isinstance(value, bytes) else TopProbs.of(TokenProb(*pair) for pair in value)
