"""Probabilities of a prompt's tokens on the fake backend, evaluated one after another."""

from __future__ import annotations

import itertools

import numpy as np

from corral.core.chunk import Chunk
from corral.core.result import TokenProbs
from corral.engine.prompt_probs import token_probs
from tests.unit.fake import FakeBackend


def expected(prompt: list[int], n_top: int) -> list[TokenProbs]:
    """One token after another, by the definition."""
    backend, probs = FakeBackend(), []
    for i, (token, following) in enumerate(itertools.pairwise(prompt)):
        backend.decode([Chunk(0, i, np.array([token], np.int32), logits=1)])
        probs.append(token_probs(backend.logits(0), following, n_top))
    return probs
