"""What evaluating costs on this machine, learned as it runs."""

from __future__ import annotations

_WEIGHT = 0.3
_MARGIN = 0.85
_UNKNOWN_PROMPT_MS = 10.0


class CostModel:
    """Mutable: moving averages of the time per decode step and per prompt token."""

    def __init__(self) -> None:
        self._decode_ms = 0.0
        self._prompt_token_ms = 0.0

    def observe(self, n_generating: int, n_prompt: int, ms: float) -> None:
        if n_generating and not n_prompt:
            self._decode_ms = _blend(self._decode_ms, ms)
        elif n_prompt:
            prompt_ms = max(ms - (self._decode_ms if n_generating else 0.0), 0.1 * ms)
            self._prompt_token_ms = _blend(self._prompt_token_ms, prompt_ms / n_prompt)

    def predict_ms(self, n_generating: int, n_prompt: int) -> float:
        return (self._decode_ms if n_generating else 0.0) + n_prompt * self._prompt_token_ms

    def room_ms(self, max_itl_ms: float) -> float:
        """How much time there is beside a decode step, so that nobody waits longer than `max_itl_ms`."""
        return (max_itl_ms - self._decode_ms) * _MARGIN

    def n_tokens_in(self, ms: float) -> int:
        """How many prompt tokens fit into so much time."""
        return int(ms / (self._prompt_token_ms or _UNKNOWN_PROMPT_MS))


def _blend(old: float, new: float) -> float:
    return new if old == 0.0 else old + _WEIGHT * (new - old)
