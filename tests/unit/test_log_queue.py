"""Lines that are written in a thread: in order, without blocking, and bounded."""

from __future__ import annotations

import logging
import threading

import pytest

from corral.server import log


class Blocked(log._LineHandler):
    """Writes while it may."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.is_reading = threading.Event()
        self.is_asked = threading.Event()

    def write(self, text: str) -> None:
        self.is_asked.set()
        self.is_reading.wait()
        self.lines += text.split("\n")

    def put(self, line: str) -> None:
        self.handle(logging.makeLogRecord({"msg": line, "levelno": logging.INFO}))


@pytest.fixture
def make():
    made = []

    def make(max_chars=1 << 20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(log, "_MAX_CHARS", max_chars)
            made.append(Blocked())
        made[-1].detach()
        return made[-1]

    yield make
    for handler in made:
        handler.is_reading.set()
        handler.close()


def test_lines_keep_their_order_and_nobody_waits_for_them(make):
    handler = make()
    lines = [str(i) for i in range(1000)]
    for line in lines:
        handler.put(line)
    assert handler.lines == []
    handler.is_reading.set()
    handler.close()
    assert handler.lines == lines


def test_what_there_is_no_room_for_is_said_to_be_missing(make):
    handler = make(max_chars=10)
    handler.put("first")
    handler.is_asked.wait()
    for i in range(20):
        handler.put(f"{i:05}")
    handler.is_reading.set()
    handler.flush()
    handler.put("later")
    handler.close()
    first, one, two, missing, later = handler.lines
    assert (first, one, two, later) == ("first", "00000", "00001", "later")
    assert missing.startswith("18 lines were dropped")


def test_a_line_longer_than_all_there_is_room_for_is_written_when_it_is_alone(make):
    handler = make(max_chars=10)
    handler.is_reading.set()
    handler.put("x" * 50)
    handler.close()
    assert handler.lines == ["x" * 50]


def test_an_end_does_not_wait_for_a_reader_that_is_gone(make, monkeypatch):
    monkeypatch.setattr(log, "_FLUSH_S", 0.01)
    handler = make()
    handler.put("unread")
    handler.close()
    assert handler.lines == []


def test_nor_does_the_end_of_the_process(make, monkeypatch):
    monkeypatch.setattr(log, "_FLUSH_S", 0.01)
    handler = make(max_chars=10)
    for _ in range(5):
        handler.put("unread")
    logging.shutdown([lambda: handler])
    assert handler.lines == []
