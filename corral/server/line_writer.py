"""Lines of a log on their way out: whoever has one goes on at once, whether or not anybody reads it.

A pipe that nobody empties, or a terminal that was stopped, would otherwise stop the whole server.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

_MAX_CHARS = 8 << 20  # that wait
_PATIENCE_S = 2.0  # for a reader, in the end


class LineWriter:
    """Hands lines to `write` in a thread of its own, in order. What there is no room for is left out; a line
    from `missing` says how many those are."""

    def __init__(
        self, write: Callable[[str], None], missing: Callable[[int], str], max_chars: int = _MAX_CHARS
    ) -> None:
        self._write = write
        self._missing = missing
        self._max_chars = max_chars
        self._lines: deque[str] = deque()
        self._n_chars = 0
        self._n_lost = 0
        self._is_writing = False
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def put(self, line: str) -> None:
        with self._changed:
            if self._lines and self._n_chars + len(line) > self._max_chars:
                self._n_lost += 1
                return
            self._append(line)

    def flush(self) -> None:
        """Wait until all is written, for as long as somebody may still read it."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._lines or self._is_writing), _PATIENCE_S)

    def close(self) -> None:
        self.flush()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _append(self, line: str) -> None:
        self._lines.append(line)
        self._n_chars += len(line)
        self._changed.notify_all()

    def _run(self) -> None:
        while (line := self._take()) is not None:
            self._write(line)

    def _take(self) -> str | None:
        """The next line, once there is one; None: there will be none."""
        with self._changed:
            self._is_writing = False
            if self._n_lost and not self._lines:
                self._append(self._missing(self._n_lost))
                self._n_lost = 0
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._lines or self._is_closed)
            if not self._lines:
                return None
            self._is_writing = True
            line = self._lines.popleft()
            self._n_chars -= len(line)
            return line
