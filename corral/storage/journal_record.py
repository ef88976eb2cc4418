"""The records of a journal: a durable request, its tasks, and the results that its client may have.

A file begins with `MAGIC`; each record has its length and a checksum before it:

    | MAGIC | length, checksum | record | length, checksum | record | ...

What follows the last whole record was torn off by a crash, and is ignored.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import xxhash

from corral.core.client import Client
from corral.core.result import (
    Admitted,
    Done,
    Progress,
    PromptProbs,
    TaskResult,
    Timings,
    TokenProbs,
    Tokens,
)
from corral.core.task import ControlVerb, Task, apply_control
from corral.core.top_probs import decode_hook, encode_hook

MAGIC = b"CORRAL-J1\n"
_HEAD = struct.Struct("<II")
_NO_TIMINGS = Timings(cache_n=0, prompt_n=0, prompt_ms=0.0, predicted_n=0, predicted_ms=0.0)


class JournalHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first record: the request, and what its answer depends on. `seed`: of the ids in the answer.
    `has_ids`: events have ids. `is_background`: a response that is found by its id. `model`: what
    distinguishes the model from others; `model_name`: by which a server finds it."""

    id: str
    client: Client
    path: str
    headers: dict[str, str]
    body: bytes
    seed: bytes
    created: int
    build: str
    model: str
    tasks: list[Task]
    has_ids: bool = False
    is_background: bool = False
    model_name: str = ""


class TokensRecord(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    """`Tokens` of a choice; written without the fields at its end that are not needed."""

    choice: int
    tokens: list[int]
    text: str
    n_tokens: int
    probs: list[TokenProbs] = []
    timings: Timings | None = None


class Rewritten(msgspec.Struct, frozen=True, array_like=True, tag="edited"):
    """An answer so far that replaced what was drawn before; written by versions before 0.13."""

    task_id: int
    tokens: list[int]
    text: str


class ResultRecord(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    """Another result of a choice, and its time in Unix seconds."""

    choice: int
    result: Admitted | Progress | PromptProbs | Rewritten | Done
    time: int


class ControlRecord(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """The client has controlled a choice."""

    choice: int
    verb: ControlVerb
    n_predict: int


class EndRecord(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    """The request has ended, whatever its choices have come to."""

    time: int


Record = TokensRecord | ResultRecord | ControlRecord | EndRecord
T = TypeVar("T")
_opening_decoder = msgspec.msgpack.Decoder(JournalHeader)
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record, dec_hook=decode_hook)
_encode = msgspec.msgpack.Encoder(enc_hook=encode_hook).encode
_DAMAGED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@dataclass(slots=True)
class History:
    """Mutable: the records of one file. `n_bytes`: up to the end of the last whole one."""

    opening: JournalHeader
    n_bytes: int
    results: list[tuple[int, TaskResult, int]] = field(default_factory=list)  # choice, result, time
    controls: list[ControlRecord] = field(default_factory=list)
    ended_at: int = 0

    @property
    def is_paused(self) -> bool:
        """Whether the client has paused the answer."""
        pauses = [each.verb for each in self.controls if each.verb in (ControlVerb.PAUSE, ControlVerb.RESUME)]
        return bool(pauses) and pauses[-1] is ControlVerb.PAUSE

    def resumed(self, task: Task, choice: int) -> Task:
        """Return a task that continues where the records of its answer end."""
        for control in self.controls:
            if control.choice == choice:
                task = apply_control(task, control.verb, control.n_predict)
        return msgspec.structs.replace(task, resume=self.tokens(choice))

    @property
    def is_complete(self) -> bool:
        """Whether all choices came to their end."""
        done = {choice for choice, result, _ in self.results if isinstance(result, Done)}
        return len(done) == len(self.opening.tasks)

    def tokens(self, choice: int) -> list[int]:
        """Return the tokens of an answer."""
        tokens: list[int] = []
        for index, result, _ in self.results:
            if index == choice and isinstance(result, Tokens):
                tokens += result.tokens
        return tokens

    def rewrite(self, choice: int, answer: Rewritten) -> None:
        """Replace the tokens of an answer."""
        self.results = [each for each in self.results if each[0] != choice or not isinstance(each[1], Tokens)]
        timings = msgspec.structs.replace(_NO_TIMINGS, predicted_n=len(answer.tokens))
        tokens = Tokens(task_id=-1, tokens=answer.tokens, text=answer.text, timings=timings)
        self.results.append((choice, tokens, 0))


def encode_opening(opening: JournalHeader) -> bytes:
    return MAGIC + frame(_encode(opening))


def encode_result(choice: int, result: TaskResult, time: int, keeps_timings: bool) -> bytes:
    if not isinstance(result, Tokens):
        return frame(_encode(ResultRecord(choice, result, time)))  # type: ignore[arg-type]
    values: list[Any] = ["t", choice, result.tokens, result.text, result.timings.predicted_n]
    if result.probs or keeps_timings:
        values += [result.probs, result.timings if keeps_timings else None]
    return frame(_encode(values))


def encode_control(choice: int, verb: ControlVerb, n_predict: int) -> bytes:
    return frame(_encode(ControlRecord(choice, verb, n_predict)))


def encode_end(time: int) -> bytes:
    return frame(_encode(EndRecord(time)))


def frame(record: bytes) -> bytes:
    return _HEAD.pack(len(record), _checksum(record)) + record


def read_history(data: bytes) -> History | None:
    """Return what a file says up to its first damage; None: not even what was asked."""
    if not data.startswith(MAGIC):
        return None
    first = _read(data, len(MAGIC), _opening_decoder)
    if first is None:
        return None
    history = History(*first)
    while True:
        found = _read(data, history.n_bytes, _decoder)
        if found is None or not _add(history, found[0]):
            return history
        history.n_bytes = found[1]


def _add(history: History, record: Record) -> bool:
    """Add a record; False: it cannot follow those before."""
    if isinstance(record, EndRecord):
        history.ended_at = record.time
        return True
    if not 0 <= record.choice < len(history.opening.tasks):
        return False
    if isinstance(record, ControlRecord):
        history.controls.append(record)
        return True
    if isinstance(record, ResultRecord):
        if isinstance(record.result, Rewritten):
            history.rewrite(record.choice, record.result)
        else:
            history.results.append((record.choice, record.result, record.time))
        return True
    timings = record.timings or msgspec.structs.replace(_NO_TIMINGS, predicted_n=record.n_tokens)
    tokens = Tokens(task_id=-1, tokens=record.tokens, text=record.text, probs=record.probs, timings=timings)
    history.results.append((record.choice, tokens, 0))
    return True


def _read(data: bytes, offset: int, decoder: msgspec.msgpack.Decoder[T]) -> tuple[T, int] | None:
    """Return the record at an offset and the offset after it; None: it is torn or damaged."""
    start = offset + _HEAD.size
    if start > len(data):
        return None
    n, checksum = _HEAD.unpack_from(data, offset)
    record = memoryview(data)[start : start + n]
    if len(record) < n or _checksum(record) != checksum:
        return None
    try:
        return decoder.decode(record), start + n
    except _DAMAGED:
        return None


def _checksum(data: bytes | memoryview) -> int:
    return xxhash.xxh3_64_intdigest(data) & 0xFFFFFFFF
