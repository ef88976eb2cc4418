"""Answers drawn nearly at random, and their values."""

from __future__ import annotations

import json
from typing import Any

from corral.core.params import SamplingParams


def hot(seed: int, quote: int) -> SamplingParams:
    """Nearly uniform, but for the token that ends a string: free names would fill the slot."""
    bias = ((quote, 4.0),)
    return SamplingParams(seed=seed, temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, logit_bias=bias)


def parse(text: str, **options) -> Any:
    return json.loads(text, parse_float=finite, **options)


def finite(text: str) -> float:
    """Numbers have no end in JSON; the validator cannot divide what is infinite."""
    return max(-1e308, min(float(text), 1e308))
