"""The text of one generation: token bytes in, sendable text out."""

from __future__ import annotations

from collections.abc import Sequence

from corral.text.indent import IndentGuard
from corral.text.stop import StopFinder
from corral.text.utf8 import Utf8Assembler


class OutputText:
    """UTF-8 assembly, stop strings and indentation in a row. Joined, its pieces are the answer."""

    def __init__(self, stop: Sequence[str], n_indent: int) -> None:
        self._utf8 = Utf8Assembler()
        self._stop = StopFinder(stop)
        self._indent = IndentGuard(n_indent)
        self.has_new_line = False

    @property
    def is_mid_character(self) -> bool:
        return self._utf8.is_mid_character

    @property
    def stopping_word(self) -> str:
        return self._stop.stopping_word

    @property
    def is_under_indented(self) -> bool:
        return self._indent.is_violated

    def feed(self, piece: bytes) -> str:
        return self._note(self._indent.feed(self._stop.feed(self._utf8.feed(piece))))

    def finish(self) -> str:
        """The rest, without the bytes of a character that never became whole."""
        return self._note(self._indent.feed(self._stop.finish()))

    def _note(self, text: str) -> str:
        self.has_new_line = self.has_new_line or "\n" in text
        return text
