"""Ctrl-C at a real terminal while a bar is shown: the command ends, and the cursor is back."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import subprocess
import sys
import termios

import pytest

from tests.system.process import START_S

HIDE, SHOW = b"\x1b[?25l", b"\x1b[?25h"
CTRL_C = b"\x03"
INTERRUPTED = 130


class Terminal:
    """A command that has one of its own."""

    def __init__(self, *words: object, env: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "corral", *map(str, words)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100", **env},
        )
        os.close(theirs)
        self.output = b""

    def read_until(self, text: bytes) -> None:
        while text not in self.output:
            piece = self._read()
            assert piece, self.output.decode()
            self.output += piece

    def press(self, key: bytes) -> None:
        os.write(self._ours, key)

    def end(self) -> int:
        """All that is still said, and the exit code."""
        while piece := self._read():
            self.output += piece
        os.close(self._ours)
        return self.process.wait(START_S)

    def _read(self) -> bytes:
        with contextlib.suppress(OSError):  # the other end is gone
            return os.read(self._ours, 4096)
        return b""


@pytest.mark.parametrize("command", ["serve", "re-encode", "tune", "download"])
def test_the_cursor_is_back(command, tmp_path, half_url, tiny):
    """With work that is not done before the key is pressed: the default model, all that is timed, half
    a file."""
    cases: dict[str, tuple[list[object], bytes, int]] = {
        "serve": (["-c", 2048, "--port", 0], b"warming up", 0),
        "re-encode": (["-c", 2048, "--port", 0, "--transcode", "Q8_0"], b"re-encoding the weights", 0),
        "tune": (["tune", "-m", tiny], b"timing", INTERRUPTED),
        "download": (["--port", 0, "--model-url", half_url], b"downloading", 0),
    }
    words, shown, code = cases[command]
    terminal = Terminal(*words, env={"LLAMA_CACHE": str(tmp_path / "cache")})
    terminal.read_until(HIDE)
    terminal.read_until(shown)
    terminal.press(CTRL_C)
    assert terminal.end() == code, terminal.output.decode()
    assert terminal.output.rindex(SHOW) > terminal.output.rindex(HIDE)
    assert b"Traceback" not in terminal.output
