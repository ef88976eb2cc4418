"""How many tokens to draft: a decision over measured costs and past acceptance."""

from __future__ import annotations

from collections.abc import Callable

_GAIN = 1.05  # a draft must promise at least so much more speed
_FADE = 0.9  # what weight older drafts have at every new one
_FADE_UNUSED = 0.98  # and at every token without one: what did not pay is tried again some time
_PRIOR = 4.0  # drafted tokens that the assumption about a kind of draft counts for


def plan_length(
    acceptance: float, n_max: int, token_ms: float, ahead_ms: Callable[[int], float], draft_ms: float = 0.0
) -> int:
    """The draft that gives most tokens for its time; 0: none gives more than to do without.

    `acceptance`: how likely each next token of a draft is right. `ahead_ms(n)`: what it costs to evaluate so
    many tokens at once, `token_ms` to evaluate one as it is done otherwise, `draft_ms` to draft one.
    """
    if not token_ms:
        return 0  # nothing was measured yet
    best, best_speed = 0, _GAIN / token_ms
    expected = chance = 1.0
    for n in range(1, n_max + 1):
        chance *= acceptance
        expected += chance
        speed = expected / (ahead_ms(n + 1) + n * draft_ms)
        if speed > best_speed:
            best, best_speed = n, speed
    return best


class DraftLength:
    """Mutable: how a request's drafts have fared, by their kind."""

    def __init__(self) -> None:
        self._counts: dict[
            str, tuple[float, float]
        ] = {}  # tokens that were right, and drafts that went wrong
        self._kind = ""

    def acceptance(self, kind: str, assumed: float) -> float:
        """How likely the next token of such a draft is right."""
        right, wrong = self._counts.get(kind, (0.0, 0.0))
        return (right + assumed * _PRIOR) / (right + wrong + _PRIOR)

    def use(self, kind: str) -> None:
        """The next draft is of this kind."""
        self._kind = kind

    def skip(self, kind: str) -> None:
        """A draft of this kind was possible, but would not have paid."""
        right, wrong = self._counts.get(kind, (0.0, 0.0))
        self._counts[kind] = (right * _FADE_UNUSED, wrong * _FADE_UNUSED)

    def observe(self, n_drafted: int, n_accepted: int) -> None:
        right, wrong = self._counts.get(self._kind, (0.0, 0.0))
        missed = n_accepted < n_drafted
        self._counts[self._kind] = (right * _FADE + n_accepted, wrong * _FADE + missed)
