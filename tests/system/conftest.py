from __future__ import annotations

import pytest

from tests.system.process import CorralProcess


@pytest.fixture(scope="module")
def corral():
    """The default model with four slots, shared by a module's tests."""
    with CorralProcess("-c", 4096, "-np", 4, "--slots") as server:
        yield server
