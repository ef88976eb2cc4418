"""How many examples a property is tried with at most: the profile says it (`tests/conftest.py`)."""

from __future__ import annotations

from hypothesis import settings


def examples(n: int) -> settings:
    return settings(max_examples=min(n, settings.default.max_examples), deadline=None)


def is_quick() -> bool:
    return settings.get_current_profile_name() == "quick"
