"""The best of several answers to a prompt: the most probable ones, per token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from corral.api.render.native import logprob_of
from corral.generate.choice import Choice


def best_choices(choices: Sequence[Choice], n_drawn: int, n: int) -> list[Choice]:
    """Return the `n` best of every `n_drawn` choices, which have the same prompt; the best one first."""
    best: list[Choice] = []
    for start in range(0, len(choices), n_drawn):
        ranked = sorted(choices[start : start + n_drawn], key=mean_logprob, reverse=True)
        best += ranked[:n]
    return [replace(choice, index=index) for index, choice in enumerate(best)]


def mean_logprob(choice: Choice) -> float:
    """Return the mean log probability per token; 0 for an empty answer."""
    return sum(logprob_of(p.chosen) for p in choice.probs) / max(1, len(choice.probs))
