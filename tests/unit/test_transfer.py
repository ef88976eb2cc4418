"""What people see of a download."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from corral.cli.transfer import TransferDisplay, sized

MIB = 1 << 20


class Screen:
    """A display, its output, and a clock that is set by hand."""

    def __init__(self, is_terminal=False):
        self.now = 100.0
        self.out = io.StringIO()
        console = Console(file=self.out, force_terminal=is_terminal, width=120, highlight=False)
        self.display = TransferDisplay(console, clock=lambda: self.now)

    @property
    def lines(self):
        return self.out.getvalue().splitlines()


def test_lines_have_share_size_speed_and_time_left():
    screen = Screen()
    screen.display.begin("downloading m.gguf", 900 * MIB, 0)
    for n in range(1, 101):
        screen.now += 1.0
        screen.display.advance(n * 9 * MIB)
    screen.display.end()
    assert len(screen.lines) == 11
    assert screen.lines[0] == "corral: downloading m.gguf (900 MiB)"
    assert screen.lines[1] == "corral: downloading m.gguf: 10%, 90.0 MiB of 900 MiB, 9.0 MiB/s, 0:01:30 left"
    assert screen.lines[-1] == "corral: downloading m.gguf: done, 900 MiB (9.0 MiB/s)"


def test_going_on_counts_what_is_new():
    screen = Screen()
    screen.display.begin("downloading m.gguf", 900 * MIB, 500 * MIB)
    screen.now += 10.0
    screen.display.advance(600 * MIB)
    assert screen.lines == [
        "corral: downloading m.gguf (900 MiB), going on after 500 MiB",
        "corral: downloading m.gguf: 67%, 600 MiB of 900 MiB, 10.0 MiB/s, 0:00:30 left",
    ]


def test_starting_over_and_unknown_sizes():
    screen = Screen()
    screen.display.begin("downloading x", None, 0)
    screen.now += 1.0
    screen.display.advance(150 * MIB)
    screen.display.advance(10)
    screen.now += 1.0
    screen.display.advance(100 * MIB + 20)
    screen.display.end()
    assert screen.lines == [
        "corral: downloading x",
        "corral: downloading x: 150 MiB, 150 MiB/s",
        "corral: downloading x: 100 MiB, 100 MiB/s",
    ]


def test_what_fails_is_not_called_done():
    screen = Screen()
    screen.display.begin("downloading x", 100, 0)
    screen.display.advance(5)
    screen.display.end()
    screen.display.end()
    screen.display.note("no more")
    assert screen.lines == ["corral: downloading x (100 bytes)", "corral: no more"]


def test_a_terminal_has_a_bar():
    screen = Screen(is_terminal=True)
    screen.display.begin("downloading [m].gguf", 100 * MIB, 0)
    for n in range(1, 101):
        screen.now += 1.0
        screen.display.advance(n * MIB)
    screen.display.note("something")
    screen.display._bar.refresh()
    screen.display.end()
    shown = screen.out.getvalue()
    assert "downloading [m].gguf" in shown
    assert "100.0/100.0 MiB" in shown
    assert "something" in shown
    assert "done, 100 MiB" in screen.lines[-1]


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
