"""The probabilities that an answer reports: of the chosen token and of the most probable others."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from corral.core.result import TokenProb, TokenProbs
from corral.core.top_probs import TopProbs


def find_top_probs(
    ids: npt.NDArray[Any], probs: npt.NDArray[np.float64], token: int, n: int, *, drop_zero: bool
) -> TokenProbs:
    n = min(n, len(probs))
    best = np.argpartition(-probs, n - 1)[:n]
    best = best[np.argsort(-probs[best], kind="stable")]
    if drop_zero:
        best = best[probs[best] > 0]
    at = np.flatnonzero(ids == token)
    chosen = TokenProb(token, float(probs[at[0]]) if len(at) else 0.0)
    return TokenProbs(chosen, TopProbs(ids[best].astype(np.int32).tobytes() + probs[best].tobytes()))
