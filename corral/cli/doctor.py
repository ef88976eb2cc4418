"""`corral doctor`: what is wrong with this machine, or with what is installed on it, and what mends it.

It needs none of the packages that the server needs: `python -m corral.cli.doctor` runs where that does not.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from corral.cli.doctor_checks import CHECKS, Finding, Level
from corral.cli.doctor_facts import Facts, gather

_PORT = 8080  # as in core/settings.py, which needs a package


def run_doctor(args: Sequence[str]) -> int:
    """1: something is wrong."""
    parser = argparse.ArgumentParser("corral doctor", description="look for what keeps Corral from running")
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")
    parser.add_argument("--port", type=int, default=_PORT, help=f"the port to look at (default: {_PORT})")
    arguments = parser.parse_args(args)
    if not 0 < arguments.port < 1 << 16:
        parser.error(f"--port {arguments.port}: it must be between 1 and 65535")
    findings = examine(gather(arguments.port))
    text = render_json(findings) if arguments.json else render_text(findings)
    sys.stdout.write(f"{text}\n")
    return 1 if _count(findings, Level.WRONG) else 0


def examine(facts: Facts) -> list[Finding]:
    return [finding for check in CHECKS for finding in check(facts)]


def render_text(findings: Sequence[Finding]) -> str:
    """A line for each, and one for what mends it."""
    lines = []
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        lines.append(f"{finding.level.value:8} {finding.name:{width}}  {finding.text}")
        if finding.remedy:
            lines.append(f"{'':8} {'':{width}}  -> {finding.remedy}")
    n_wrong, n_warnings = _count(findings, Level.WRONG), _count(findings, Level.WARNING)
    verdict = f"{n_wrong} wrong, {n_warnings} to look at" if n_wrong or n_warnings else "all is well"
    return "\n".join([*lines, verdict])


def render_json(findings: Sequence[Finding]) -> str:
    is_ok = not _count(findings, Level.WRONG)
    return json.dumps({"ok": is_ok, "checks": [asdict(finding) for finding in findings]}, indent=2)


def _count(findings: Sequence[Finding], level: Level) -> int:
    return sum(finding.level is level for finding in findings)


if __name__ == "__main__":
    raise SystemExit(run_doctor(sys.argv[1:]))
