"""Locate the part of a JSON Schema that llguidance refuses: it reports the reason, but not the place.

Pure except for the compiler it is given; used only after a failure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from corral.grammar.schema import parts_of

_SHARED = ("$defs", "definitions", "x-guidance")  # keywords of the root that its parts depend on


@dataclass(frozen=True, slots=True)
class Fault:
    """A keyword at a JSON pointer, and the reason. An empty keyword means the part as a whole."""

    pointer: str
    keyword: str
    reason: str


def find_fault(
    schema: Any, refusal: Callable[[Any], str], is_late: Callable[[], bool] = lambda: False
) -> Fault | None:
    """Find the smallest part that `refusal` rejects, and the keyword at fault; None if nothing is rejected.

    Once `is_late`, the result is what was found so far.
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
                # `false` is refused because nothing matches it, which is its purpose.
                child_reason = "" if child is False or self._is_late() else self.reason(child)
                if child_reason:
                    pointer, part, reason = f"{pointer}/{step}", child, child_reason
                    break
            else:
                return pointer, part, reason

    def blame(self, part: Any) -> str:
        """Return the keyword whose removal makes the part acceptable."""
        if not isinstance(part, dict):
            return ""
        for keyword in part:
            if self._is_late():
                break
            rest = {k: v for k, v in part.items() if k != keyword}
            # The root's definitions may contain the fault, so also try without them.
            if keyword not in _SHARED and not (self.reason(rest) and self._refusal(rest)):
                return str(keyword)
        return ""
