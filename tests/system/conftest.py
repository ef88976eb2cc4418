from __future__ import annotations

import pytest

from tests.soak.disk import NoDisk, small_disk
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


@pytest.fixture
def disk():
    """A directory that is soon full."""
    try:
        with small_disk() as disk:
            yield disk
    except NoDisk as error:
        pytest.skip(f"a small disk can be mounted neither as this user nor in a namespace: {error}")
