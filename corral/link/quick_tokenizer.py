"""Tokenize short texts for the event loop, without a thread that waits for the answer.

One socket to the tokenizer process, one frame on the way: texts that come meanwhile leave together, up to a
limit. What was in a process that died or is late goes to a thread, where `Tokenizer` finds out which text it
was.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from corral.link.frame import DAMAGED, FrameAssembler, decode_tokens, encode_frame
from corral.link.tokenizer import Tokenizer
from corral.link.tokenizer_process import TokenizerProcess
from corral.text.vocab import Segment, tokens_of

_MAX_WAITING = 256
_MAX_TOGETHER = 8  # requests that go on in the same pass of the event loop
_RECEIVE_BYTES = 256 << 10

_Encoded = tuple[bytes, bool, bool]


@dataclass(frozen=True, slots=True)
class _Asked:
    """Texts, and their answer: tokens, or the number of processes that died with them."""

    segments: list[_Encoded]
    answer: asyncio.Future[list[list[int]] | int]


class QuickTokenizer:
    """Mutable, on the event loop."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._line: _Line | None = None
        self._waiting: list[_Asked] = []

    async def tokenize_all(self, segments: Sequence[Segment]) -> list[list[int]]:
        """Tokenize each segment separately; they should be short."""
        n_crashes = 0
        if len(self._waiting) < _MAX_WAITING:
            encoded = [(text.encode(), add, parse) for text, add, parse in segments]
            asked = _Asked(encoded, asyncio.get_running_loop().create_future())
            self._waiting.append(asked)
            self._send()
            found = await asked.answer
            if not isinstance(found, int):
                return found
            n_crashes = found
        return await asyncio.to_thread(self._tokenizer.tokenize_all, segments, n_crashes)

    def close(self) -> None:
        """Leave what waits to threads; call it before the tokenizer is closed."""
        if self._line is not None:
            self._line.lose()

    def _send(self) -> None:
        """Send what waits, if nothing is on its way; without a process, leave it to threads."""
        if self._line is not None and self._line.is_busy:
            return
        process = self._tokenizer.worker.enter_quick()
        line = self._open_line(process) if process is not None else None
        if line is not None:
            leaving, self._waiting = self._waiting[:_MAX_TOGETHER], self._waiting[_MAX_TOGETHER:]
            line.ask(leaving, self._tokenizer.timeout_s)
            return
        waiting, self._waiting = self._waiting, []
        for asked in waiting:
            if not asked.answer.done():
                asked.answer.set_result(0)

    def _open_line(self, process: TokenizerProcess) -> _Line | None:
        if self._line is not None and self._line.process is process:
            return self._line
        if self._line is not None:
            self._line.close()
        sock = process.take_quick()
        self._line = _Line(process, sock, self) if sock is not None else None
        if self._line is None:
            self._tokenizer.worker.leave_quick(process, is_lost=True)
        return self._line

    def on_end(self, line: _Line, is_lost: bool) -> None:
        self._tokenizer.worker.leave_quick(line.process, is_lost)
        if is_lost:
            self.on_close(line)
        if self._waiting:
            self._send()

    def on_close(self, line: _Line) -> None:
        if self._line is line:
            self._line = None


class _Line:
    """Mutable: the loop's socket to one process, and the texts that are in it."""

    def __init__(self, process: TokenizerProcess, sock: socket.socket, owner: QuickTokenizer) -> None:
        self.process = process
        self._owner = owner
        self._sock = sock
        self._frames = FrameAssembler()
        self._asked: list[_Asked] = []
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._sock.fileno(), self._read)

    @property
    def is_busy(self) -> bool:
        return bool(self._asked)

    def ask(self, asked: list[_Asked], timeout_s: float) -> None:
        self._asked = asked
        segments = [segment for each in asked for segment in each.segments]
        self._timer = self._loop.call_later(timeout_s, self._give_up)
        try:
            self._sock.sendall(encode_frame(segments))  # the buffer is empty, and they are short
        except OSError:
            self._loop.call_soon(self.lose)

    def lose(self) -> None:
        """Leave what is on its way to threads."""
        self._end(None)

    def close(self) -> None:
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()

    def _read(self) -> None:
        try:
            data = self._sock.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        bodies = self._frames.feed(data)
        try:
            found = [tokens_of(each) for each in decode_tokens(bodies[0])] if bodies else None
        except DAMAGED:
            data = b""
        if not data:
            self.lose()
        elif found is not None:
            self._end(found)

    def _give_up(self) -> None:
        self.process.is_late = True
        self.lose()

    def _end(self, found: list[list[int]] | None) -> None:
        asked, self._asked = self._asked, []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        start, n_crashes = 0, int(not self.process.is_late)
        for each in asked:
            end = start + len(each.segments)
            if not each.answer.done():  # its client may have gone
                each.answer.set_result(n_crashes if found is None else found[start:end])
            start = end
        if found is None:
            self.close()
        if asked:
            self._owner.on_end(self, is_lost=found is None)
        else:
            self._owner.on_close(self)
