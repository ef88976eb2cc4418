"""Warnings in answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def render_warnings(warnings: Sequence[str]) -> dict[str, Any]:
    """Return the field of an answer that has warnings; none without any."""
    return {"warnings": warnings} if warnings else {}
