"""How many examples a property is tried with: fewer in `make check`, which runs with the profile "quick"."""

from __future__ import annotations

from hypothesis import settings


def is_quick() -> bool:
    return settings.get_current_profile_name() == "quick"


def examples(n: int) -> settings:
    return settings(max_examples=min(n, 20) if is_quick() else n, deadline=None)
