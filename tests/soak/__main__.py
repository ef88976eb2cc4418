"""`python -m tests.soak`: the report as text, and as JSON in a file; ends with 1 if a promise was broken."""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

from tests.soak.corpus import render, run_corpus
from tests.soak.report import HEALTH_MS
from tests.soak.run import Plan, soak

TOLERANCE = 5  # a machine may be this much slower, or busy with other things
OUT = Path(".cache") / "soak.json"


def main() -> int:
    given = _arguments()
    seed = random.randrange(1_000_000) if given.seed is None else given.seed
    sys.stderr.write(f"soak with --seed {seed}, a few minutes\n")
    report = soak(Plan(given.requests, given.clients, given.idle, given.dribbling, seed=seed))
    sys.stdout.write(report.text() + "\n")
    found = run_corpus(n_checked=1 << 30, n_loaded=given.mutants) if given.mutants else []
    sys.stdout.write(render(found) + "\n")
    OUT.parent.mkdir(exist_ok=True)
    corpus = {counts.name: dict(counts.outcomes) for counts in found}
    OUT.write_text(json.dumps({**report.facts(), "damaged_files": corpus}, indent=1))
    sys.stdout.write(f"{OUT} has the same for programs\n")
    is_slow = report.health.percentile_ms(0.99) > TOLERANCE * HEALTH_MS
    return 1 if is_slow or report.problems() or any(counts.problems for counts in found) else 0


def _arguments() -> argparse.Namespace:
    default = Plan()
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak", description="Traffic under faults, checked."
    )
    for name, value, help in (
        ("--requests", default.n_requests, "in all"),
        ("--clients", default.n_clients, "at once"),
        ("--idle", default.n_idle, "sockets that say nothing"),
        ("--dribbling", default.n_dribbling, "sockets that say a byte a second"),
        ("--mutants", 200, "damaged files to load, of each kind; all of them are checked"),
    ):
        parser.add_argument(name, type=int, default=value, metavar="N", help=f"{help} (default: {value})")
    parser.add_argument("--seed", type=int, metavar="N", help="of an earlier run (default: any)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
