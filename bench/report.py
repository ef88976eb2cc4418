"""The file with everything that was measured last, section by section."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

OUT = Path(__file__).parent / "out" / "bench.json"
COMPARE = "compare"
Report = dict[str, Any]


def read_report() -> Report:
    """What the file has; nothing where there is none."""
    return dict(json.loads(OUT.read_text())) if OUT.exists() else {}


def write_report(report: Report) -> None:
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(report, indent=1))
