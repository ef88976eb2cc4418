"""Tokens counted the way OpenAI counts them."""

from __future__ import annotations

from typing import Any

from corral.api.choice import Choice


class Usage:
    """Mutable: the sum over a request's choices. A prompt with several answers counts once."""

    def __init__(self) -> None:
        self._n_prompt = 0
        self._n_cached = 0
        self._n_generated = 0

    def count(self, choice: Choice) -> None:
        timings = choice.ended.timings
        self._n_generated += timings.predicted_n
        if choice.is_first:
            self._n_prompt += len(choice.task.prompt)
            self._n_cached += timings.cache_n

    def render(self) -> dict[str, Any]:
        return {
            "completion_tokens": self._n_generated,
            "prompt_tokens": self._n_prompt,
            "total_tokens": self._n_prompt + self._n_generated,
            "prompt_tokens_details": {"cached_tokens": self._n_cached},
        }
