"""Short texts of the event loop: without threads, together, and with the same care for texts that kill."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Any, cast

import pytest

from corral.core.errors import InvalidRequest
from corral.link import restart
from corral.link.frame import LENGTH_BYTES, BlockingChannel, decode_segments
from corral.link.quick_tokenizer import QuickTokenizer
from corral.link.tokenizer import Tokenizer
from tests.unit import fake_tokenizer as threads
from tests.unit.fake_tokenizer import FILE, GENEROUS_S, HANGS, KILLS

N_CHANNELS = 2


class Process(threads.Process):
    """A tokenizer process whose quick socket is served by a thread."""

    def __init__(self, n_channels: int, timeout_s: float) -> None:
        super().__init__(n_channels, timeout_s)
        ours, self.theirs = socket.socketpair()
        self.quick, self.frames = [ours], []
        self.thread = threading.Thread(target=self._serve, args=(BlockingChannel(self.theirs),), daemon=True)
        self.thread.start()

    def take_quick(self) -> socket.socket | None:
        return self.quick.pop() if self.quick else None

    def close(self) -> str:
        reason = super().close()
        if (quick := self.take_quick()) is not None:
            quick.close()
        with contextlib.suppress(OSError):  # its thread has closed it
            self.theirs.shutdown(socket.SHUT_RDWR)  # the end of a process ends its sockets
        self.thread.join(GENEROUS_S)
        return reason

    def _serve(self, channel: BlockingChannel) -> None:
        own = threads.Channel(cast(Any, self))
        while (body := channel.receive()) is not None:
            segments = decode_segments(body)
            self.frames.append([text.decode() for text, _, _ in segments])
            if HANGS.encode() in [text for text, _, _ in segments]:
                self.gone.wait(GENEROUS_S)
                break
            if KILLS.encode() in [text for text, _, _ in segments]:
                self.kill()
                break
            answer = own.ask(bytes(LENGTH_BYTES) + body, GENEROUS_S)
            if answer is None:
                break
            channel._sock.sendall(len(answer).to_bytes(LENGTH_BYTES, "little") + answer)
        channel.close()


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(threads.Process, "all", [])
    monkeypatch.setattr(threads.Process, "errors", [])
    monkeypatch.setattr(threads.Process, "released", threading.Event())
    monkeypatch.setattr(restart, "_FIRST_S", 0.001)


@pytest.fixture
async def quick():
    tokenizer = Tokenizer(N_CHANNELS, timeout_s=GENEROUS_S, make=cast(Any, Process))
    tokenizer.start()
    tokenizer.open(FILE)
    quick = QuickTokenizer(tokenizer)
    await asyncio.to_thread(_until_ready, tokenizer)
    yield quick
    quick.close()
    await asyncio.to_thread(tokenizer.close)


def _until_ready(tokenizer: Tokenizer) -> None:
    tokenizer.tokenize_all([("ready", False, False)])


async def ask(quick: QuickTokenizer, text: str) -> list[int]:
    (tokens,) = await quick.tokenize_all([(text, False, False)])
    return tokens


async def test_texts_get_their_own_tokens(quick):
    assert await ask(quick, "ab") == [97, 98]
    assert await quick.tokenize_all([("a", False, False), ("bc", False, False)]) == [[97], [98, 99]]


async def test_what_comes_meanwhile_leaves_together(quick):
    texts = [chr(ord("a") + i) for i in range(8)]
    assert await asyncio.gather(*(ask(quick, text) for text in texts)) == [[ord(text)] for text in texts]
    assert cast(Process, Process.all[0]).frames == [["a"], texts[1:]]


async def test_a_client_that_goes_leaves_the_others_their_tokens(quick):
    first, second = asyncio.ensure_future(ask(quick, "a")), asyncio.ensure_future(ask(quick, "b"))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == [98]
    assert await ask(quick, "c") == [99]


async def test_a_text_that_kills_is_refused_and_its_neighbours_are_not(quick):
    asked = asyncio.gather(ask(quick, KILLS), ask(quick, "b"), return_exceptions=True)
    killed, other = await asked
    assert isinstance(killed, InvalidRequest)
    assert other == [98]
    assert await ask(quick, "c") == [99]
    assert len(Process.all) == 3, "the text killed two"


async def test_a_late_answer_is_asked_for_again_in_a_thread(quick, monkeypatch):
    monkeypatch.setattr(quick._tokenizer, "timeout_s", 0.01)
    asked = asyncio.ensure_future(ask(quick, HANGS))
    with pytest.raises(Exception, match="did not finish"):
        await asked
    assert await ask(quick, "c") == [99]
