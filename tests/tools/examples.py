"""How many examples or cases a law is tried with: the profile says it (`tests/conftest.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import settings

T = TypeVar("T")


def examples(n: int) -> settings:
    return settings(max_examples=min(n, settings.default.max_examples), deadline=None)


def is_quick() -> bool:
    return settings.get_current_profile_name() == "quick"


def some(all: Sequence[T]) -> Sequence[T]:
    """All cases, or to be quick every third of them."""
    return all[::3] if is_quick() else all
