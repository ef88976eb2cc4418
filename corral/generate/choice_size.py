"""Estimate the size of a choice's answer: long ones are rendered in a thread."""

from __future__ import annotations

from corral.core.result import Done, TaskResult, Tokens
from corral.generate.answer_size import PROB_BYTES, TOKEN_BYTES, echo_bytes
from corral.generate.choice import Choice

_PROB_WORK = 4 * PROB_BYTES  # text that takes as long to render as a probability


def choice_bytes(choice: Choice) -> int:
    task = choice.task
    n_probs = len(choice.probs) * (1 + task.params.sampling.n_probs)
    n_tokens = 2 * len(choice.tokens) + len(task.prompt)
    return n_probs * _PROB_WORK + n_tokens * TOKEN_BYTES + echo_bytes(task.params) + _prompt_bytes(choice)


def result_bytes(choice: Choice, result: TaskResult) -> int:
    """Return the size of a result's events; the first one includes the prompt's probabilities."""
    is_first = len(choice.texts) == 1
    prompt_bytes = _prompt_bytes(choice) if is_first else 0
    if isinstance(result, Tokens):
        return prompt_bytes + sum(1 + len(probs.top) for probs in result.probs) * _PROB_WORK
    if isinstance(result, Done):
        return prompt_bytes + len(choice.task.prompt) * TOKEN_BYTES + echo_bytes(choice.task.params)
    return 0


def _prompt_bytes(choice: Choice) -> int:
    return len(choice.prompt_probs) * (1 + choice.task.params.n_prompt_probs) * _PROB_WORK
