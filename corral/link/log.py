"""Log lines of other processes on their way to the front: a pipe, and before every line its level, as `<30>`.

What comes without a level was written by native code, or by an interpreter that gives up. Only the front
knows where lines go in the end, and which of them.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import BinaryIO

_MAX_LINE_BYTES = 64 << 10
_LINE = re.compile(r"<(\d\d)>(.*)", re.DOTALL)


def log_to_front() -> None:
    """Whatever is logged from now on goes through the pipe, which is this process's stderr."""
    handler = _Pipe(sys.stderr)
    handler.setFormatter(_LevelFormatter())
    logging.getLogger().addHandler(handler)
    logging.getLogger("corral").setLevel(logging.DEBUG)


def relay_log(pipe: BinaryIO, name: str) -> None:
    """In a thread of the front: log what comes out of the pipe, until the process is gone."""
    log = logging.getLogger(name)
    with pipe:
        while line := pipe.readline(_MAX_LINE_BYTES):
            level, text = parse_line(line)
            if text:
                log.log(level, "%s", text)


def parse_line(line: bytes) -> tuple[int, str]:
    """Its level and what it says."""
    text = line.decode("utf-8", "replace").rstrip()
    if found := _LINE.fullmatch(text):
        return int(found[1]), found[2]
    return logging.WARNING, text


class _Pipe(logging.StreamHandler):  # type: ignore[type-arg]
    def handleError(self, record: logging.LogRecord) -> None:
        """Nobody listens any more: this process ends soon."""


class _LevelFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        lines = super().format(record).splitlines() or [""]
        return "\n".join(f"<{record.levelno:02}>{line}" for line in lines)
