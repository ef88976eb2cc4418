"""Keep text of users that looks like a control token from being tokenized as one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_SIGN = "\ue0c0"  # a private-use character: with the next character it stands for a text
_BASE = 0xF0000


class Guard:
    """Replaces the texts of control tokens before a template is rendered, and restores them afterwards."""

    def __init__(self, control_texts: Sequence[str]) -> None:
        self._texts = [_SIGN, *sorted(control_texts, key=len, reverse=True)]
        self._numbers = {text: number for number, text in enumerate(self._texts)}
        self._pattern = re.compile("|".join(map(re.escape, self._texts)))

    def hide(self, value: Any) -> Any:
        """Return the value with every such text replaced by a placeholder."""
        if isinstance(value, str):
            return self._pattern.sub(lambda found: _SIGN + chr(_BASE + self._numbers[found[0]]), value)
        if isinstance(value, dict):
            return {key: self.hide(item) for key, item in value.items()}
        return [self.hide(item) for item in value] if isinstance(value, list) else value

    def split(self, prompt: str) -> list[tuple[str, bool]]:
        """Split the prompt at placeholders. The restored texts are marked True."""
        pieces: list[tuple[str, bool]] = []
        first, *others = prompt.split(_SIGN)
        pieces.append((first, False))
        for other in others:
            number = ord(other[0]) - _BASE if other else -1
            is_known = 0 <= number < len(self._texts)
            pieces.append((self._texts[number] if is_known else _SIGN, True))
            pieces.append((other[1:] if is_known else other, False))
        return [piece for piece in pieces if piece[0]]
