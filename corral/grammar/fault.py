"""Where in a JSON Schema the part is that llguidance refuses: it says why, but not where.

Pure but for the compiler it is given; only used once something has failed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from corral.grammar.schema import parts_of

_SHARED = ("$defs", "definitions", "x-guidance")  # what parts of a schema need of the whole


@dataclass(frozen=True, slots=True)
class Fault:
    """A keyword at a JSON pointer, and what is wrong with it. No keyword: it is the part as a whole."""

    pointer: str
    keyword: str
    reason: str


def find_fault(
    schema: Any, refusal: Callable[[Any], str], is_late: Callable[[], bool] = lambda: False
) -> Fault | None:
    """The smallest part that `refusal` has something against, and the keyword to blame; None: all is well.

    Once `is_late`, what was found so far has to do.
    """
    search = _Search(schema, refusal, is_late)
    reason = search.reason(schema)
    if not reason:
        return None
    pointer, part, reason = search.descend("#", schema, reason)
    return Fault(pointer, search.blame(part), reason)


class _Search:
    def __init__(self, root: Any, refusal: Callable[[Any], str], is_late: Callable[[], bool]) -> None:
        self._shared = {k: root[k] for k in _SHARED if k in root} if isinstance(root, dict) else {}
        self._refusal = refusal
        self._is_late = is_late

    def reason(self, part: Any) -> str:
        if not isinstance(part, dict):
            return self._refusal(part)
        return self._refusal({**self._shared, **part})

    def descend(self, pointer: str, part: Any, reason: str) -> tuple[str, Any, str]:
        while True:
            for step, child in parts_of(part):
                # That nothing follows `false` is the point of it.
                child_reason = "" if child is False or self._is_late() else self.reason(child)
                if child_reason:
                    pointer, part, reason = f"{pointer}/{step}", child, child_reason
                    break
            else:
                return pointer, part, reason

    def blame(self, part: Any) -> str:
        """The keyword without which there would be nothing to refuse."""
        if not isinstance(part, dict):
            return ""
        for keyword in part:
            if self._is_late():
                break
            rest = {k: v for k, v in part.items() if k != keyword}
            # The whole's definitions may hold the very thing: without them is as good.
            if keyword not in _SHARED and not (self.reason(rest) and self._refusal(rest)):
                return str(keyword)
        return ""
