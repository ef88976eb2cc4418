"""Classifier-free guidance: steer away from what would follow another prompt.

A guided request is a pair: the positive, which is answered, and the negative, which has another prompt and
gets every token that the positive draws. Each has a slot; both are evaluated in the same batch.
"""

from __future__ import annotations

import numpy as np

from corral.core.chunk import FloatArray


def guide(logits: FloatArray, negative: FloatArray, scale: float) -> FloatArray:
    """Move logits to `scale` times their distance from the negative ones."""
    ours, theirs = _log_softmax(logits), _log_softmax(negative)
    with np.errstate(invalid="ignore"):
        guided: FloatArray = theirs + np.float32(scale) * (ours - theirs)
    return np.where(np.isneginf(ours) | np.isneginf(theirs), ours, guided)


def _log_softmax(logits: FloatArray) -> FloatArray:
    shifted = logits - logits.max()
    total: FloatArray = shifted - np.log(np.exp(shifted).sum())
    return total
