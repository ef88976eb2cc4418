"""What people see of a download."""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console

from corral.core.result import Loading, Stage
from corral.models.files.transfer import Transfer, sized

MIB = 1 << 20


class Screen:
    """A display, what it logs, and a clock that is set by hand."""

    def __init__(self, log, out=None):
        self.now = 100.0
        self._log = log
        console = Console(file=out, force_terminal=True, width=120, highlight=False) if out else None
        self.display = Transfer(console, clock=lambda: self.now)

    @property
    def lines(self):
        return self._log.messages


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, "corral")
    return caplog


def test_lines_have_share_size_speed_and_time_left(log):
    screen = Screen(log)
    screen.display.begin("downloading m.gguf", 900 * MIB, 0)
    for n in range(1, 101):
        screen.now += 1.0
        screen.display.advance(n * 9 * MIB)
    screen.display.end()
    assert len(screen.lines) == 11
    assert screen.lines[0] == "downloading m.gguf (900 MiB)"
    assert screen.lines[1] == "downloading m.gguf: 10%, 90.0 MiB of 900 MiB, 9.0 MiB/s, 0:01:30 left"
    assert screen.lines[-1] == "downloading m.gguf: done, 900 MiB (9.0 MiB/s)"


def test_going_on_counts_what_is_new(log):
    screen = Screen(log)
    screen.display.begin("downloading m.gguf", 900 * MIB, 500 * MIB)
    screen.now += 10.0
    screen.display.advance(600 * MIB)
    assert screen.lines == [
        "downloading m.gguf (900 MiB), resumed at 500 MiB",
        "downloading m.gguf: 67%, 600 MiB of 900 MiB, 10.0 MiB/s, 0:00:30 left",
    ]


def test_starting_over_and_unknown_sizes(log):
    screen = Screen(log)
    screen.display.begin("downloading x", None, 0)
    screen.now += 1.0
    screen.display.advance(150 * MIB)
    screen.display.advance(10)
    screen.now += 1.0
    screen.display.advance(100 * MIB + 20)
    screen.display.end()
    assert screen.lines == [
        "downloading x",
        "downloading x: 150 MiB, 150 MiB/s",
        "downloading x: 100 MiB, 100 MiB/s",
    ]


def test_what_fails_is_not_called_done(log):
    screen = Screen(log)
    screen.display.begin("downloading x", 100, 0)
    screen.display.advance(5)
    screen.display.end()
    screen.display.end()
    screen.display.note("no more")
    assert screen.lines == ["downloading x (100 bytes)", "no more"]


def test_a_terminal_has_a_bar(log):
    out = io.StringIO()
    screen = Screen(log, out)
    screen.display.begin("downloading [m].gguf", 100 * MIB, 0)
    for n in range(1, 101):
        screen.now += 1.0
        screen.display.advance(n * MIB)
    screen.display.note("something")
    screen.display._bar._progress.refresh()
    screen.display.end()
    shown = out.getvalue()
    assert "downloading [m].gguf" in shown
    assert "100.0/100.0 MiB" in shown
    assert "something" in screen.lines
    assert "done, 100 MiB" in screen.lines[-1]


def test_a_server_that_waits_is_told_every_step():
    told: list[Loading] = []
    transfer = Transfer(report=told.append)
    transfer.begin("downloading x", 400, 100)
    transfer.advance(200)
    transfer.begin("downloading y", None, 0)
    assert [(each.stage, each.progress) for each in told] == [
        (Stage.DOWNLOADING, progress) for progress in (0.0, 0.25, 0.5, 0.0)
    ]
    assert "200 bytes of 400 bytes" in told[2].detail


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (123 << 10, "123 KiB"),
        (5 << 30, "5.0 GiB"),
        (1 << 40, "1.0 TiB"),
        (5000 << 40, "5000 TiB"),
    ],
)
def test_sizes(n, text):
    assert sized(n) == text
