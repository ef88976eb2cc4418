"""Minimum indentation: text ends before the first line that is indented less than asked."""

from __future__ import annotations


class IndentGuard:
    """The line the text begins in is exempt; blanks and tabs count one each."""

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
