from __future__ import annotations

import pytest

from tests.system.process import CorralProcess
from tests.tools.tiny_models import llama_bpe


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A model of random weights: fast, and nothing in it helps an answer to be right."""
    return llama_bpe(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def corral():
    """The default model with four slots, shared by a module's tests."""
    with CorralProcess("-c", 4096, "-np", 4, "--slots") as server:
        yield server
