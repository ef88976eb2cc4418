"""Lines that are written in a thread: in order, without anybody waiting, and not without end."""

from __future__ import annotations

import threading

import pytest

from corral.server.line_writer import LineWriter


class Reader:
    """Takes lines while it may."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.is_reading = threading.Event()
        self.is_asked = threading.Event()

    def write(self, line: str) -> None:
        self.is_asked.set()
        self.is_reading.wait()
        self.lines.append(line)


@pytest.fixture
def reader():
    reader = Reader()
    yield reader
    reader.is_reading.set()


def missing(n: int) -> str:
    return f"{n} are missing"


def test_lines_keep_their_order_and_nobody_waits_for_them(reader):
    writer = LineWriter(reader.write, missing)
    lines = [str(i) for i in range(1000)]
    for line in lines:
        writer.put(line)
    assert reader.lines == []
    reader.is_reading.set()
    writer.close()
    assert reader.lines == lines


def test_what_there_is_no_room_for_is_said_to_be_missing(reader):
    writer = LineWriter(reader.write, missing, max_chars=10)
    writer.put("first")
    reader.is_asked.wait()
    for i in range(20):
        writer.put(f"{i:05}")
    reader.is_reading.set()
    writer.flush()
    writer.put("later")
    writer.close()
    assert reader.lines == ["first", "00000", "00001", "18 are missing", "later"]


def test_a_line_longer_than_all_there_is_room_for_is_written_when_it_is_alone(reader):
    reader.is_reading.set()
    writer = LineWriter(reader.write, missing, max_chars=10)
    writer.put("x" * 50)
    writer.close()
    assert reader.lines == ["x" * 50]


def test_an_end_does_not_wait_for_a_reader_that_is_gone(reader, monkeypatch):
    monkeypatch.setattr("corral.server.line_writer._PATIENCE_S", 0.01)
    writer = LineWriter(reader.write, missing)
    writer.put("unread")
    writer.close()
    assert reader.lines == []
