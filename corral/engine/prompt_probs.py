"""Probabilities of a prompt's own tokens, for requests that ask for them.

The logits after a token tell the probability of the next one. Rows of logits are large: of each only the next
token's probability is kept, and those of the most probable tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from corral.core.chunk import ALIGNMENT, FloatArray, TokenArray
from corral.core.errors import NonFiniteLogits
from corral.core.params import MAX_AHEAD
from corral.core.result import TokenProb, TokenProbs
from corral.core.top_probs import TopProbs

# Tokens of a chunk that all have logits: a context keeps no more rows than a draft needs.
MAX_ROWS = MAX_AHEAD - MAX_AHEAD % ALIGNMENT


def prompt_probs(
    prompt: TokenArray, start: int, n: int, n_top: int, logits: Callable[[int], FloatArray]
) -> list[TokenProbs]:
    """Return the probabilities of the tokens that follow each of `n` evaluated ones from `start` on.

    `logits(back)`: the row after the token that is `back` places before the last of them. What follows the
    prompt is not part of it.
    """
    following = prompt[start + 1 : start + n + 1].tolist()
    return [token_probs(logits(n - 1 - i), token, n_top) for i, token in enumerate(following)]


def token_probs(logits: FloatArray, token: int, n_top: int) -> TokenProbs:
    """Return the probability of a token, and the `n_top` most probable ones, best first."""
    best = float(logits.max())
    if not np.isfinite(best):
        raise NonFiniteLogits
    total = float(np.exp(logits - np.float32(best)).sum(dtype=np.float64))
    ids = [token, *_top(logits, n_top)]
    probs = np.exp(logits[ids].astype(np.float64) - best) / total
    chosen, *top = map(TokenProb, ids, probs.tolist())
    return TokenProbs(chosen, TopProbs.of(top))


def _top(logits: FloatArray, n: int) -> list[int]:
    """Return the `n` most probable tokens; of equal ones the first."""
    n = min(n, len(logits))
    if not n:
        return []
    ids = np.argpartition(logits, len(logits) - n)[len(logits) - n :]
    top: list[int] = ids[np.lexsort((ids, -logits[ids]))].tolist()
    return top
