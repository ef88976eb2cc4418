"""A transfer that nobody watches, and that remembers everything."""

from __future__ import annotations

from corral.models.files.transfer import Transfer


class Recorder(Transfer):
    def __init__(self) -> None:
        super().__init__()
        self.begun: list[tuple[str, int | None, int]] = []
        self.done: list[int] = []
        self.notes: list[str] = []
        self.n_ends = 0

    def begin(self, what: str, n_bytes: int | None, n_done: int) -> None:
        self.begun.append((what, n_bytes, n_done))

    def advance(self, n_done: int) -> None:
        self.done.append(n_done)

    def note(self, message: str) -> None:
        self.notes.append(message)

    def end(self) -> None:
        self.n_ends += 1

    @property
    def said(self) -> str:
        return "\n".join(self.notes)
