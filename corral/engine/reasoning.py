"""Reasoning that has become too long is ended: its closing tag is forced."""

from __future__ import annotations

from corral.core.params import ReasoningBudget


class ReasoningLimit:
    """Mutable: counts the tokens of reasoning at the beginning of an answer, however these were cut."""

    def __init__(self, budget: ReasoningBudget) -> None:
        self._start = budget.start.encode()
        self._ends = [end.encode() for end in (budget.end, *budget.other_ends)]
        self._n_kept = max(map(len, self._ends))
        self.is_controlled = budget.is_controlled
        self._n_left = budget.n_tokens
        self._closing = list(budget.end_tokens)
        self._is_inside = budget.is_open
        self._is_over = not self._closing
        self._text = b""

    @property
    def next_token(self) -> int | None:
        """The token that has to follow; None: any."""
        return self._closing[0] if self._is_inside and not self._is_over and self._n_left <= 0 else None

    def end(self) -> bool:
        """End reasoning before the next token. False: it is over already."""
        self._n_left = 0
        return not self._is_over

    def feed(self, token: int, piece: bytes) -> None:
        """Take in the next token of the answer."""
        if self._is_over:
            return
        if token == self.next_token:
            del self._closing[0]
            self._is_over = not self._closing
            return
        self._text += piece
        if self._is_inside:
            self._n_left -= 1
            self._is_over = any(end in self._text for end in self._ends)
            self._text = self._text[-self._n_kept :]
        else:
            self._look_for_start()

    def _look_for_start(self) -> None:
        text = self._text.lstrip()
        if text.startswith(self._start):
            self._is_inside, self._text = True, b""
        elif not self._start.startswith(text):
            self._is_over = True  # it does not reason
