"""Stop strings: pass text through until one is complete, and hold back what could become one.

    generated   | text to send | could become a stop string |
                |<- returned ->|<---------- held ---------->|

The held text is always shorter than the longest stop string.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopFinder:
    """Ends the text at the first completed stop string, however the text was split."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = tuple(word for word in words if word)
        self._held = ""
        self.stopping_word = ""

    def feed(self, text: str) -> str:
        """Return the text that is certainly not part of a stop string."""
        if not self._words or self.stopping_word:
            return "" if self.stopping_word else text
        text = self._held + text
        hit = self._first_hit(text)
        if hit is not None:
            start, self.stopping_word = hit
            self._held = ""
            return text[:start]
        keep = max(overlap(text, word) for word in self._words)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """Return the text that was held back and did not become a stop string."""
        text, self._held = self._held, ""
        return text

    def _first_hit(self, text: str) -> tuple[int, str] | None:
        hits = [(start + len(word), start, word) for word in self._words if (start := text.find(word)) >= 0]
        if not hits:
            return None
        _, start, word = min(hits)
        return start, word


def overlap(text: str, word: str) -> int:
    """Return the length of the longest proper prefix of `word` that `text` ends with."""
    for n in range(min(len(word) - 1, len(text)), 0, -1):
        if text.endswith(word[:n]):
            return n
    return 0
