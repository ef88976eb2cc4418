"""`python -m tests.fuzz`: mutated input for every parser that reads bytes from outside, one after the other.

Each parser runs in a process of its own. A case that breaks a rule is kept in `tests/fuzz/found`, where
`tests/unit/test_fuzz.py` tries it from then on. Ends with 1 if there is one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.fuzz.case_file import read_case
from tests.fuzz.targets import FOUND, names
from tests.fuzz.worker import RESULT

OUT = Path(".cache") / "fuzz.json"
SECONDS = 20.0
_MAX_ERROR = 4000  # characters of a report


def main() -> int:
    given = _arguments()
    first_seed = random.randrange(1_000_000_000) if given.seed is None else given.seed
    sys.stdout.write(f"fuzz with --seed {first_seed}, {given.seconds:g} s for each target\n")
    results = []
    for name in given.targets or names():
        results.append(_run(name, given.seconds, first_seed))
        sys.stdout.write(_line(results[-1]) + "\n")
        sys.stdout.flush()
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps({"seed": first_seed, "targets": results}, indent=1))
    sys.stdout.write(f"{OUT} has the same for programs\n")
    return 1 if any(result["problem"] for result in results) else 0


def _run(name: str, seconds: float, first_seed: int) -> dict[str, Any]:
    """Fuzz a target in a process; its death is a finding too."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        directory = Path(place)
        command = [sys.executable, "-m", "tests.fuzz.worker", name, str(seconds), str(first_seed), place]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        result: dict[str, Any] = {"name": name, "problem": ""}
        if (directory / RESULT).exists():
            result = json.loads((directory / RESULT).read_text())
        elif done.returncode:
            result["problem"] = f"the process ended with {done.returncode}\n{done.stderr[-_MAX_ERROR:]}"
        if result["problem"] and (case := read_case(directory)) is not None:
            result["kept"] = _keep(name, case)
        return result


def _keep(name: str, case: bytes) -> str:
    path = FOUND / name / f"{hashlib.sha256(case).hexdigest()[:12]}.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(case)
    return str(path)


def _line(result: dict[str, Any]) -> str:
    if "n_cases" not in result:
        return f"{result['name']:12} {result['problem']}\n  kept: {result.get('kept', 'nothing')}"
    counts = (
        f"{result['name']:12} {result['n_cases']:9,} cases, {result['n_accepted']:9,} accepted in "
        f"{result['seconds']:g} s; at most {result['max_cpu_s'] * 1e3:.0f} ms, {result['max_mib']:.0f} MiB"
    )
    return f"{counts}\n{result['problem']}  kept: {result['kept']}" if result["problem"] else counts


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"default: {' '.join(names())}")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="for each target (default: %(default)g)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of an earlier run (default: any)")
    given = parser.parse_args()
    if unknown := set(given.targets) - set(names()):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    return given


if __name__ == "__main__":
    sys.exit(main())
