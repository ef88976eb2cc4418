"""What several unit tests need."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture
def busy_interpreter():
    """A thread has the interpreter until it waits for something."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60.0)
    yield
    sys.setswitchinterval(interval)
