"""Drafts from earlier text: a pure search."""

from __future__ import annotations

import numpy as np

from corral.core.chunk import TokenArray

MIN_MATCH = 3  # tokens at the end that must have occurred before
MAX_MATCH = 16


def find_continuation(tokens: TokenArray, n_max: int) -> tuple[TokenArray, int]:
    """Return what followed an earlier occurrence of the end of `tokens`, and how much of the end matched.

    The longest match counts, and the last among equals; a continuation that runs into the end of `tokens`
    is repeated periodically.
    """
    places = np.flatnonzero(tokens[:-1] == tokens[-1:])
    n = 1
    while n < MAX_MATCH and len(places):
        longer = places[places >= n]
        longer = longer[tokens[longer - n] == tokens[-1 - n]]
        if not len(longer):
            break
        places, n = longer, n + 1
    if n < MIN_MATCH or not len(places):
        return tokens[:0], 0
    start = int(places[-1]) + 1
    period = len(tokens) - start
    return tokens[start + np.arange(n_max) % period], n
