"""Decide how long streams wait for prompts in a step: a pure decision over requests and learned costs.

What has come together waits for each other: the tokens of a prompt take much longer in small pieces, since
each step also costs what a batch costs whatever is in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from corral.engine.cost import CostModel
from corral.engine.request import Request

_LEAST_ITL_MS = 30.0  # that a GPU's streams may wait in any case
_PROMPT_SHARE = 3  # of what a batch of prompt tokens costs by itself
_BURST_SHARE = 20  # of what a step costs whatever prompts are in it, within a burst
_LONGEST_MS = 2000.0  # within a burst, however slow the machine is
_MUCH_LONGER = 4  # than a stream's own prompt has taken: no stream pauses for such a prompt


class Patience:
    def __init__(self, cost: CostModel, max_itl_ms: float, is_fast: bool) -> None:
        """`is_fast`: a GPU evaluates."""
        self._cost = cost
        self._max_itl_ms = max_itl_ms
        self._is_fast = is_fast

    def ms(self, streams: Sequence[Request], prompts: Sequence[Request]) -> float:
        """Return how long a step may take."""
        if self._is_fast:
            return min(self._max_itl_ms, self._gpu_ms(len(streams), len(prompts)))
        return max(self._max_itl_ms, self._burst_ms(streams, prompts))

    def _gpu_ms(self, n_streams: int, n_prompts: int) -> float:
        """Return how long a GPU's streams wait: most of a step should be prompt tokens, since a batch costs
        much whatever is in it; more if there are few of them beside many prompts."""
        step_ms = self._cost.decode_ms + _PROMPT_SHARE * self._cost.prompt.batch_ms
        return max(_LEAST_ITL_MS, step_ms) * (1 + 3 * n_prompts / n_streams)

    def _burst_ms(self, streams: Sequence[Request], prompts: Sequence[Request]) -> float:
        """Return how long streams wait for prompts that have come with them: no longer than each has waited
        for its own first token, and than it takes to evaluate prompts at nearly full speed."""
        if not prompts:
            return 0.0
        wait_ms = min(stream.wait_ms for stream in streams)
        if not any(self._is_of_burst(prompt, streams, wait_ms) for prompt in prompts):
            return 0.0
        return min(wait_ms, _LONGEST_MS, _BURST_SHARE * (self._cost.decode_ms + self._cost.prompt.batch_ms))

    def _is_of_burst(self, prompt: Request, streams: Sequence[Request], wait_ms: float) -> bool:
        """Whether all streams have come with a prompt, which is not much longer than theirs were."""
        whole_ms = (len(prompt.prompt) - prompt.n_cached) * self._cost.prompt.token_ms
        return whole_ms <= _MUCH_LONGER * wait_ms and all(
            prompt.has_come_with(stream, self._max_itl_ms) for stream in streams
        )
