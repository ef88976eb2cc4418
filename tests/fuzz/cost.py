"""What one case costs: CPU time and the growth of the process, with all that native libraries allocate."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

_CLEAR, _STATUS = "/proc/self/clear_refs", "/proc/self/status"
_SIZE = re.compile(rb"^Vm(HWM|RSS):\s+(\d+) kB$", re.M)
CAN_MEASURE_MEMORY = os.path.exists(_CLEAR)  # Linux


@dataclass(frozen=True, slots=True)
class Cost:
    cpu_s: float
    mib: float


class Meter:
    """Mutable: owns the files in which the system tells the size of this process."""

    def __init__(self) -> None:
        self._status = os.open(_STATUS, os.O_RDONLY) if CAN_MEASURE_MEMORY else -1
        self._clear = os.open(_CLEAR, os.O_WRONLY) if CAN_MEASURE_MEMORY else -1

    def measure(self, function: Callable[[], T]) -> tuple[T, Cost]:
        """Call the function; memory is 0 where the system cannot tell."""
        before = self._reset_peak()
        started = time.process_time()
        result = function()
        cpu_s = time.process_time() - started
        return result, Cost(cpu_s, (self._sizes().get(b"HWM", 0) - before) / 1024)

    def _reset_peak(self) -> int:
        """Forget the largest size so far; return the present one in KiB."""
        if not CAN_MEASURE_MEMORY:
            return 0
        os.pwrite(self._clear, b"5", 0)
        return self._sizes()[b"RSS"]

    def _sizes(self) -> dict[bytes, int]:
        if not CAN_MEASURE_MEMORY:
            return {}
        return {name: int(value) for name, value in _SIZE.findall(os.pread(self._status, 4096, 0))}
