"""What a fuzzer needs to know of a parser: valid samples, how to mutate them, the documented errors."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

MAX_BYTES = 64 << 10  # of a case
Mutator = Callable[[random.Random], bytes]


@dataclass(frozen=True, slots=True)
class Limit:
    """What one case may cost: a base, and more for each KiB of it."""

    cpu_s: float = 2.0
    cpu_s_per_kib: float = 0.05
    mib: float = 64.0
    mib_per_kib: float = 1.0

    def max_cpu_s(self, n_bytes: int) -> float:
        return self.cpu_s + self.cpu_s_per_kib * n_bytes / 1024

    def max_mib(self, n_bytes: int) -> float:
        return self.mib + self.mib_per_kib * n_bytes / 1024


@dataclass(frozen=True, slots=True)
class Target:
    """`parse` returns for valid bytes, raises one of `errors` for others, and does nothing else.

    `seeds` are valid: `parse` accepts them as they are. `mutate` makes a case from one.
    """

    name: str
    parse: Callable[[bytes], object]
    seeds: list[bytes]
    mutate: Mutator
    errors: tuple[type[Exception], ...]
    limit: Limit = Limit()

    def accepts(self, case: bytes) -> bool:
        """Whether the case is valid. Anything but a documented error is raised."""
        try:
            self.parse(case)
        except self.errors:
            return False
        return True
