"""A progress bar on a terminal. It hides the cursor, so `close` always runs before the process exits."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn


@contextmanager
def progress_bar() -> Iterator[Callable[[str, float], None]]:
    """Show a bar if standard error is a terminal. Yields a function of description and fraction."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda *_: None
        return
    with closing(Bar(console, "")) as bar:
        yield lambda what, fraction: bar.update(fraction, what)


class Bar:
    """A progress bar that is shown until `close`, which also runs when the process exits."""

    def __init__(
        self,
        console: Console,
        what: str,
        *,
        total: float | None = 1.0,
        completed: int = 0,
        columns: Sequence[ProgressColumn] = (),
    ) -> None:
        """`columns` follow the description and the bar; the default is a percentage."""
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn  # slow import

        description = TextColumn("{task.description}", markup=False)
        self._progress = Progress(
            description, BarColumn(), *(columns or (TaskProgressColumn(),)), console=console, transient=True
        )
        self._task = self._progress.add_task(what, total=total, completed=completed)
        atexit.register(self.close)
        self._progress.start()

    def update(self, completed: float, what: str | None = None) -> None:
        self._progress.update(self._task, completed=completed, description=what)

    def close(self) -> None:
        self._progress.stop()
        atexit.unregister(self.close)
