"""Progress of a download: a bar on a terminal, otherwise log lines."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from corral.core.result import Loading, Stage
from corral.models.files.bar import Bar

if TYPE_CHECKING:
    from rich.console import Console

_PLAIN_STEP = 0.1
_PLAIN_STEP_BYTES = 100 << 20  # if the size is unknown
_log = logging.getLogger("corral")


class Transfer:
    """Follows the bytes of one file at a time: in the log, or with a bar on the console if there is one."""

    def __init__(
        self,
        console: Console | None = None,
        *,
        report: Callable[[Loading], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`report`: also tells a server that waits for the file; it may raise to stop the download."""
        self._out, self._report, self._clock = console, report, clock
        self._bar: Bar | None = None
        self._what = ""
        self._n_bytes: int | None = None
        self._n_first = self._n_done = self._next_line = 0
        self._start = 0.0
        report(Loading(Stage.DOWNLOADING, 0.0, "the model: requesting it"))

    def begin(self, what: str, n_bytes: int | None, n_done: int) -> None:
        """Start a file. `n_bytes`: its size if known; `n_done`: bytes that are already local."""
        self.end()
        self._what, self._n_bytes = what, n_bytes
        self._restart(n_done)
        if self._out is not None:
            self._show_bar(self._out)
        else:
            going_on = f", resumed at {sized(n_done)}" if n_done else ""
            size = f" ({sized(n_bytes)})" if n_bytes is not None else ""
            _log.info("%s", f"{what}{size}{going_on}")
        self._report_progress()

    def advance(self, n_done: int) -> None:
        """Report the number of local bytes; smaller than before if the download starts over."""
        if n_done < self._n_done:
            self._restart(n_done)
        self._n_done = n_done
        if self._bar is not None:
            self._bar.update(n_done)
        elif n_done >= self._next_line and n_done != self._n_bytes:
            _log.info("%s", f"{self._what}: {self._facts()}")
            self._next_line = n_done + self._step
        self._report_progress()

    def note(self, message: str) -> None:
        _log.warning("%s", message)

    def end(self) -> None:
        """End the file, complete or not."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        if self._what and self._n_done and self._n_done == self._n_bytes:
            speed = f" ({sized(self._speed())}/s)" if self._speed() else ""
            _log.info("%s", f"{self._what}: done, {sized(self._n_done)}{speed}")
        self._what, self._n_bytes, self._n_done = "", None, 0

    def _restart(self, n_done: int) -> None:
        self._n_first = self._n_done = n_done
        self._start, self._next_line = self._clock(), n_done + self._step

    @property
    def _step(self) -> int:
        return _PLAIN_STEP_BYTES if self._n_bytes is None else max(int(self._n_bytes * _PLAIN_STEP), 1)

    def _facts(self) -> str:
        speed = self._speed()
        facts = [f"{sized(speed)}/s"] if speed else []
        if self._n_bytes is None:
            return ", ".join([sized(self._n_done), *facts])
        if speed:
            facts.append(f"{timedelta(seconds=round((self._n_bytes - self._n_done) / speed))} left")
        share = self._n_done / self._n_bytes if self._n_bytes else 1.0
        return ", ".join([f"{share:.0%}", f"{sized(self._n_done)} of {sized(self._n_bytes)}", *facts])

    def _speed(self) -> float:
        elapsed = self._clock() - self._start
        return (self._n_done - self._n_first) / elapsed if elapsed > 0 else 0.0

    def _show_bar(self, console: Console) -> None:
        from rich.progress import DownloadColumn, TimeRemainingColumn, TransferSpeedColumn  # slow import

        columns = (DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn())
        self._bar = Bar(console, self._what, total=self._n_bytes, completed=self._n_done, columns=columns)

    def _report_progress(self) -> None:
        n_bytes, n_done = self._n_bytes, self._n_done
        of = f" of {sized(n_bytes)}" if n_bytes else ""
        detail = f"the model: {sized(n_done)}{of}, not cached yet"
        self._report(Loading(Stage.DOWNLOADING, n_done / n_bytes if n_bytes else 0.0, detail))


def sized(n_bytes: float) -> str:
    """Format a number of bytes."""
    size, unit = float(n_bytes), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1000:  # at most three digits before the point
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "bytes" or size >= 100 else f"{size:.1f} {unit}"
