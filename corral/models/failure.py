"""Why a model could not be loaded, and when the next request may try again."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from corral.core.errors import CorralError, Unavailable

_FIRST_RETRY_S, _LONGEST_RETRY_S = 5.0, 300.0


@dataclass(frozen=True, slots=True)
class Failure:
    error: CorralError
    retry_at: float
    n: int  # in a row

    @classmethod
    def after(cls, last: Failure | None, error: CorralError) -> Failure:
        """Return the failure that follows another one: the time until the next try grows."""
        n = (last.n if last is not None else 0) + 1
        delay_s = min(_LONGEST_RETRY_S, _FIRST_RETRY_S * 2.0 ** (n - 1))
        return cls(error, time.monotonic() + delay_s, n)

    @property
    def retry_after_s(self) -> float:
        return max(0.0, self.retry_at - time.monotonic())

    def answer(self, name: str) -> CorralError:
        """Return the error for requests to the model."""
        message = f"model '{name}' failed to load: {self.error.message}"
        return Unavailable(message, retry_after_s=math.ceil(self.retry_after_s), **self.error.details)
