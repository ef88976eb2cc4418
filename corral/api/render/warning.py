"""Warnings in answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from corral.chat.event import Diagnosis


def describe_diagnosis(diagnosis: Diagnosis) -> str:
    """Return the warning about what the parser did not take for a tool call."""
    return f"text that looks like a tool call is not one: {diagnosis.reason}"


def render_warnings(warnings: Sequence[str]) -> dict[str, Any]:
    """Return the field of an answer that has warnings; none without any."""
    return {"warnings": warnings} if warnings else {}
