"""Fuzz one target in this process: `python -m tests.fuzz.worker NAME SECONDS SEED DIRECTORY`.

The case that is being tried is always in a file of the directory, so that it is known after a crash. A case
that takes longer than `HANG_S` ends the process, also inside native code.
"""

from __future__ import annotations

import faulthandler
import random
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from tests.fuzz.case_file import CaseFile
from tests.fuzz.cost import Cost, Meter
from tests.fuzz.shrink import shrink
from tests.fuzz.target import Target
from tests.fuzz.targets import find_target

HANG_S = 60.0
RESULT = "result.json"
_ARM_EVERY_S = 1.0  # starting the timer starts a thread


class TooMuch(AssertionError):
    """A case costs more than its size allows."""


@dataclass(slots=True)
class Tried:
    """Mutable: what was tried so far. `problem`: why it ended early."""

    name: str
    n_cases: int = 0
    n_accepted: int = 0
    max_cpu_s: float = 0.0
    max_mib: float = 0.0
    seconds: float = 0.0
    problem: str = ""

    def add(self, is_accepted: bool, cost: Cost) -> None:
        self.n_cases += 1
        self.n_accepted += is_accepted
        self.max_cpu_s = max(self.max_cpu_s, cost.cpu_s)
        self.max_mib = max(self.max_mib, cost.mib)


class Fuzzer:
    """Mutable: tries cases of one target; the last one is in `directory`."""

    def __init__(self, target: Target, directory: Path) -> None:
        self.tried = Tried(target.name)
        self._target = target
        self._file = CaseFile(directory)
        self._meter = Meter()
        self._armed_at = 0.0

    def run(self, seconds: float, first_seed: int) -> Tried:
        """Try mutated cases until the time is over or one of them breaks a rule; that one is made small."""
        began, number = time.monotonic(), first_seed
        while time.monotonic() - began < seconds and not self.tried.problem:
            self._check(self._target.mutate(random.Random(number)))
            number += 1
        faulthandler.cancel_dump_traceback_later()
        self.tried.seconds = round(time.monotonic() - began, 1)
        return self.tried

    def _check(self, case: bytes) -> None:
        try:
            self.tried.add(*self._try(case))
        except Exception as error:
            kind = type(error)
            small = shrink(case, lambda other: self._fails(other, kind))
            self._file.write(small)
            self.tried.problem = "".join(traceback.format_exception(error, limit=-8))

    def _fails(self, case: bytes, kind: type[Exception]) -> bool:
        try:
            self._try(case)
        except Exception as error:
            return type(error) is kind
        return False

    def _try(self, case: bytes) -> tuple[bool, Cost]:
        """Parse a case; raises TooMuch if it costs too much twice."""
        self._file.write(case)
        self._arm()
        is_accepted, cost = self._meter.measure(lambda: self._target.accepts(case))
        if self._is_too_much(case, cost):
            _, again = self._meter.measure(lambda: self._target.accepts(case))
            cost = Cost(min(cost.cpu_s, again.cpu_s), min(cost.mib, again.mib))
            if self._is_too_much(case, cost):
                raise TooMuch(f"{len(case)} bytes took {cost.cpu_s:.2f} s and {cost.mib:.0f} MiB")
        return is_accepted, cost

    def _is_too_much(self, case: bytes, cost: Cost) -> bool:
        limit, n = self._target.limit, len(case)
        return cost.cpu_s > limit.max_cpu_s(n) or cost.mib > limit.max_mib(n)

    def _arm(self) -> None:
        """Have this process end in a minute, unless another case begins before."""
        if (now := time.monotonic()) > self._armed_at + _ARM_EVERY_S:
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            self._armed_at = now


def main() -> int:
    name, seconds, first_seed, place = sys.argv[1:]
    target = find_target(name)
    for case in target.seeds:  # what is imported and allocated once
        target.accepts(case)
    tried = Fuzzer(target, Path(place)).run(float(seconds), int(first_seed))
    (Path(place) / RESULT).write_bytes(orjson.dumps(asdict(tried)))
    return 1 if tried.problem else 0


if __name__ == "__main__":
    sys.exit(main())
