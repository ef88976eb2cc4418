"""The text of one generation: bytes of tokens in, text to send out."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from corral.text.stop import StopFinder


class OutputText:
    """UTF-8 decoding, stop strings and indentation in sequence. The joined pieces are the answer.

    Characters are emitted whole, however their bytes were split; invalid bytes become U+FFFD.
    """

    def __init__(self, stop: Sequence[str], n_indent: int) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = StopFinder(stop)
        self._indent = IndentGuard(n_indent)
        self._is_free = not any(stop) and n_indent <= 0  # nothing ends it
        self.has_new_line = False

    @property
    def is_mid_character(self) -> bool:
        return bool(self._utf8.getstate()[0])

    @property
    def stopping_word(self) -> str:
        return self._stop.stopping_word

    @property
    def is_under_indented(self) -> bool:
        return self._indent.is_violated

    def feed(self, piece: bytes) -> str:
        if self._is_free:
            return self._note(self._utf8.decode(piece))
        return self._note(self._indent.feed(self._stop.feed(self._utf8.decode(piece))))

    def finish(self) -> str:
        """Return the rest, without the bytes of an incomplete character."""
        return self._note(self._indent.feed(self._stop.finish()))

    def _note(self, text: str) -> str:
        self.has_new_line = self.has_new_line or "\n" in text
        return text


class IndentGuard:
    """Ends the text before the first line that is indented less than required.

    The first line is exempt; a space or a tab counts as one.
    """

    def __init__(self, n_indent: int) -> None:
        self._n_indent = n_indent
        self._seen: int | None = None
        self.is_violated = False

    def feed(self, text: str) -> str:
        if self.is_violated:
            return ""
        if self._n_indent <= 0:
            return text
        for i, char in enumerate(text):
            if char == "\n":
                self._seen = 0
            elif self._seen is None:
                continue
            elif char in " \t":
                self._seen += 1
            elif self._seen < self._n_indent:
                self.is_violated = True
                return text[:i]
            else:
                self._seen = None
        return text
