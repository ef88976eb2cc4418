"""The input of a tool call while it is generated: only text that is certainly a prefix of valid JSON is
sent."""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json


class ToolInput:
    """The joined results of `feed` are the beginning of a JSON object at every point."""

    def __init__(self) -> None:
        self._sent = ""
        self._held = ""  # text that cannot continue the object

    @property
    def is_begun(self) -> bool:
        return bool(self._sent)

    def feed(self, text: str) -> str:
        """Return the text that can be sent now."""
        if self._held:
            self._held += text
            return ""
        n = len(text) if _is_beginning(self._sent + text) else self._n_right(text)
        self._sent, self._held = self._sent + text[:n], text[n:]
        return text[:n]

    def value(self) -> dict[str, Any]:
        """Return the object as far as it was generated."""
        value = from_json(self._sent, allow_partial=True) if self._sent.strip() else {}
        return value if isinstance(value, dict) else {}

    def _n_right(self, text: str) -> int:
        """Return how many characters can follow what was sent."""
        low, high = 0, len(text)
        while low < high - 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _is_beginning(self._sent + text[:middle]) else (low, middle)
        return low


def _is_beginning(text: str) -> bool:
    """Whether the text is a JSON object or may become one."""
    if not text.lstrip().startswith("{"):
        return not text.strip()
    try:
        from_json(text, allow_partial=True)
    except ValueError:
        return False
    return True
