"""Plan how many tokens to draft, from measured costs and past acceptance."""

from __future__ import annotations

from collections.abc import Callable

_GAIN = 1.05  # minimum speedup that a draft must promise
_FADE = 0.9  # factor on the weight of older drafts at every new one
_FADE_UNUSED = 0.98  # the same at every token without a draft, so that what did not pay is tried again later
_PRIOR = 4.0  # weight, in drafted tokens, of the initial assumption about a kind of draft


def plan_length(
    acceptance: float,
    n_max: int,
    token_ms: float,
    ahead_ms: Callable[[int], float],
    draft_ms: float = 0.0,
    mark_ms: float | None = None,
) -> int:
    """Choose the draft length with the most tokens per time; 0: no draft is faster.

    `acceptance`: probability that the next token of a draft is right. `ahead_ms(n)`: cost of evaluating
    `n` tokens at once; `token_ms`: of one token without a draft; `draft_ms`: of drafting one token.
    `mark_ms`: of a mark, if a wrong draft has to be taken back to it, and its beginning evaluated again.
    """
    if not token_ms:
        return 0  # nothing was measured yet
    best, best_speed = 0, _GAIN / token_ms
    expected = chance = 1.0
    redo_ms = 2 * mark_ms if mark_ms is not None else 0.0
    for n in range(1, n_max + 1):
        if mark_ms is not None:  # the first wrong token is the n-th: it comes with those before it
            redo_ms += chance * (1 - acceptance) * max(ahead_ms(n + 1) - token_ms, 0.0)
        chance *= acceptance
        expected += chance
        speed = expected / (ahead_ms(n + 1) + n * draft_ms + redo_ms)
        if speed > best_speed:
            best, best_speed = n, speed
    return best


class DraftLength:
    """Mutable: acceptance of a request's drafts, by kind."""

    def __init__(self) -> None:
        self._counts: dict[
            str, tuple[float, float]
        ] = {}  # accepted tokens, and drafts that were rejected at some token
        self._kind = ""

    def acceptance(self, kind: str, assumed: float) -> float:
        """Estimate the probability that the next token of such a draft is right."""
        right, wrong = self._counts.get(kind, (0.0, 0.0))
        return (right + assumed * _PRIOR) / (right + wrong + _PRIOR)

    def use(self, kind: str) -> None:
        """Record that the next draft is of this kind."""
        self._kind = kind

    def skip(self, kind: str) -> None:
        """Record that a draft of this kind was possible, but would not have paid."""
        right, wrong = self._counts.get(kind, (0.0, 0.0))
        self._counts[kind] = (right * _FADE_UNUSED, wrong * _FADE_UNUSED)

    def observe(self, n_drafted: int, n_accepted: int) -> None:
        right, wrong = self._counts.get(self._kind, (0.0, 0.0))
        missed = n_accepted < n_drafted
        self._counts[self._kind] = (right * _FADE + n_accepted, wrong * _FADE + missed)
