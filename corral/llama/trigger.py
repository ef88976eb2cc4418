"""Find where a lazy grammar begins: at the first of several words or tokens."""

from __future__ import annotations

from corral.core.params import Constraint


class TriggerWords:
    """Mutable: the end of the text so far, in which a word may have begun."""

    def __init__(self, constraint: Constraint) -> None:
        self._words = [word.encode() for word in constraint.trigger_words]
        self._tokens = frozenset(constraint.trigger_tokens)
        self._n_kept = max(map(len, self._words), default=1) - 1
        self._text = b""

    def feed(self, token: int, piece: bytes) -> bytes | None:
        """Return the text from the trigger on, once it was generated."""
        if token in self._tokens:
            return piece
        self._text += piece
        found = [at for word in self._words if (at := self._text.find(word)) >= 0]
        if found:
            return self._text[min(found) :]
        self._text = self._text[-self._n_kept :] if self._n_kept else b""
        return None
