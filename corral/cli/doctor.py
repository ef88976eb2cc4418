"""`corral doctor`: what is wrong with this machine, or with the installed packages, and how to repair it.

It needs none of the packages that the server needs: `python -m corral.cli.doctor` runs where that does not.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from corral.cli.doctor_checks import CheckResult, Level, examine
from corral.cli.doctor_facts import gather

_PORT = 8080  # as in core/settings.py, which needs a package


def run_doctor(args: Sequence[str]) -> int:
    """1: something is wrong."""
    parser = argparse.ArgumentParser("corral doctor", description="look for what keeps Corral from running")
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")
    parser.add_argument("--port", type=int, default=_PORT, help=f"the port to look at (default: {_PORT})")
    arguments = parser.parse_args(args)
    if not 0 < arguments.port < 1 << 16:
        parser.error(f"--port {arguments.port}: it must be between 1 and 65535")
    results = examine(gather(arguments.port))
    text = render_json(results) if arguments.json else render_text(results)
    sys.stdout.write(f"{text}\n")
    return 1 if _count(results, Level.WRONG) else 0


def render_text(results: Sequence[CheckResult]) -> str:
    """A line for each, and one for its remedy."""
    lines = []
    width = max(len(result.name) for result in results)
    for result in results:
        lines.append(f"{result.level.value:8} {result.name:{width}}  {result.text}")
        if result.remedy:
            lines.append(f"{'':8} {'':{width}}  -> {result.remedy}")
    n_wrong, n_warnings = _count(results, Level.WRONG), _count(results, Level.WARNING)
    verdict = f"{n_wrong} wrong, {n_warnings} to look at" if n_wrong or n_warnings else "all is well"
    return "\n".join([*lines, verdict])


def render_json(results: Sequence[CheckResult]) -> str:
    is_ok = not _count(results, Level.WRONG)
    return json.dumps({"ok": is_ok, "checks": [asdict(result) for result in results]}, indent=2)


def _count(results: Sequence[CheckResult], level: Level) -> int:
    return sum(result.level is level for result in results)


if __name__ == "__main__":
    raise SystemExit(run_doctor(sys.argv[1:]))
