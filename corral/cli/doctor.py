"""`corral doctor`: check this machine and the installed packages, and suggest fixes.

Runs as `python -m corral.cli.doctor` even if the packages that the server requires are missing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from corral.cli.doctor_checks import CheckResult, Level, examine
from corral.cli.doctor_facts import Facts

_PORT = 8080  # as in core/settings.py, which imports a package that may be missing


def run_doctor(args: Sequence[str]) -> int:
    """Run the checks; the exit status is 1 if one fails."""
    parser = argparse.ArgumentParser(
        "corral doctor", description="check this installation and machine for problems"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--port", type=int, default=_PORT, help=f"the port to check (default: {_PORT})")
    arguments = parser.parse_args(args)
    if not 0 < arguments.port < 1 << 16:
        parser.error(f"--port {arguments.port}: must be between 1 and 65535")
    results = examine(Facts(arguments.port))
    text = render_json(results) if arguments.json else render_text(results)
    sys.stdout.write(f"{text}\n")
    return 1 if _count(results, Level.WRONG) else 0


def render_text(results: Sequence[CheckResult]) -> str:
    """Print a line for each result, and another for its remedy."""
    lines = []
    width = max(len(result.name) for result in results)
    for result in results:
        lines.append(f"{result.level.value:8} {result.name:{width}}  {result.text}")
        if result.remedy:
            lines.append(f"{'':8} {'':{width}}  -> {result.remedy}")
    n_wrong, n_warnings = _count(results, Level.WRONG), _count(results, Level.WARNING)
    verdict = f"errors: {n_wrong}, warnings: {n_warnings}" if n_wrong or n_warnings else "no problems found"
    return "\n".join([*lines, verdict])


def render_json(results: Sequence[CheckResult]) -> str:
    is_ok = not _count(results, Level.WRONG)
    return json.dumps({"ok": is_ok, "checks": [asdict(result) for result in results]}, indent=2)


def _count(results: Sequence[CheckResult], level: Level) -> int:
    return sum(result.level is level for result in results)


if __name__ == "__main__":
    raise SystemExit(run_doctor(sys.argv[1:]))
