"""Divide the events of an engine between its fronts: those of a task are for its front, others for all.

Fronts number their tasks and commands in ranges of their own, so that ids say whose they are and travel
unchanged: an event is passed on as the bytes that it came in.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any, Protocol, get_args

import msgspec

from corral.core.result import Admitted, Answer, Failed, Foreign, LastResult, Queue, TaskResult

_RANGE_BITS = 32  # of ids; two numbers of fronts and all their ids fit into a double, as pages have them
_MAX_FRONTS = 64
_MAX_STARTS = (1 << 15) - 1
HOST = 0  # the number of commands of the host itself


class Head(msgspec.Struct, frozen=True, array_like=True):
    """The beginning of an event."""

    tag: str
    first: Any = None


decode_raw = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
decode_head = msgspec.msgpack.Decoder(Head).decode
_encode = msgspec.msgpack.Encoder().encode


def _tags(union: Any) -> frozenset[str]:
    kinds = get_args(union) or (union,)
    return frozenset(str(kind.__struct_config__.tag) for kind in kinds)


_OF_TASK = _tags(TaskResult | Answer)
_LAST = _tags(LastResult | Failed | Answer)
_ADMITTED, _QUEUE = Admitted.__struct_config__.tag, Queue.__struct_config__.tag


def number_front(index: int, now_s: float | None = None) -> int:
    """Return a number for the front `index` of a group: another one at every start, since events of tasks of
    the last one may still be on their way."""
    start = int(time.time() if now_s is None else now_s) % _MAX_STARTS
    return (1 + start) * _MAX_FRONTS + index


def first_id(front: int) -> int:
    return front << _RANGE_BITS


def front_of(id: int) -> int:
    return id >> _RANGE_BITS


class Sharing(Protocol):
    """The host, as far as events concern it."""

    def on_last(self, id: int) -> None:
        """Called for every task or command that has ended."""

    def on_other(self, tag: str, raw: msgspec.Raw) -> None:
        """Called for every event that is about the engine itself."""

    def n_foreign(self, front: int) -> int:
        """Return the number of tasks that other fronts have."""
        ...


def split(body: bytes, fronts: Collection[int], host: Sharing) -> dict[int, bytes]:
    """Return the frames that fronts get of one frame."""
    parts: dict[int, list[msgspec.Raw | Queue | Foreign]] = {front: [] for front in fronts}
    for raw in decode_raw(body):
        head = decode_head(raw)
        if head.tag in _OF_TASK:
            _give(raw, head, parts, host)
            continue
        host.on_other(head.tag, raw)
        for front, part in parts.items():
            part.append(_own(head, front) if head.tag == _QUEUE else raw)
    return {front: _encode(part) for front, part in parts.items() if part}


def _give(
    raw: msgspec.Raw, head: Head, parts: dict[int, list[msgspec.Raw | Queue | Foreign]], host: Sharing
) -> None:
    """Give an event to the front of its task, and tell the others which slot that has taken."""
    owner = front_of(head.first)
    if owner in parts:
        parts[owner].append(raw)
    if head.tag in _LAST:
        host.on_last(head.first)
    elif head.tag == _ADMITTED:
        slot = _decode_admitted(raw).id_slot
        for front in parts.keys() - {owner}:
            parts[front].append(Foreign(host.n_foreign(front), [slot]))


class _Admitted(msgspec.Struct, frozen=True, array_like=True):
    tag: str
    task_id: int
    id_slot: int


_decode_admitted = msgspec.msgpack.Decoder(_Admitted).decode


def _own(head: Head, front: int) -> Queue:
    return Queue([id for id in head.first if front_of(id) == front])
