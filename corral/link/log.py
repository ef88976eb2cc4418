"""Relay the log of other processes to the front: lines over a pipe, each prefixed with its level, as `<30>`.

Lines without a level come from native code or a failing interpreter. Only the front filters lines.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import BinaryIO

_MAX_LINE_BYTES = 64 << 10
_LINE = re.compile(r"<(\d\d)>(.*)", re.DOTALL)


def log_to_front() -> None:
    """Write all logging of this process to stderr, which is the pipe."""
    handler = _Pipe(sys.stderr)
    handler.setFormatter(_LevelFormatter())
    logging.getLogger().addHandler(handler)
    logging.getLogger("corral").setLevel(logging.DEBUG)


def relay_log(pipe: BinaryIO, name: str) -> None:
    """Log the lines from the pipe until the process is gone; runs in a thread of the front."""
    log = logging.getLogger(name)
    with pipe:
        while line := pipe.readline(_MAX_LINE_BYTES):
            level, text = parse_line(line)
            if text:
                log.log(level, "%s", text)


def parse_line(line: bytes) -> tuple[int, str]:
    """Return a line's level and text."""
    text = line.decode("utf-8", "replace").rstrip()
    if found := _LINE.fullmatch(text):
        return int(found[1]), found[2]
    return logging.WARNING, text


class _Pipe(logging.StreamHandler):  # type: ignore[type-arg]
    def handleError(self, record: logging.LogRecord) -> None:
        """Ignore it: the reader is gone, and this process will end soon."""


class _LevelFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        lines = super().format(record).splitlines() or [""]
        return "\n".join(f"<{record.levelno:02}>{line}" for line in lines)
