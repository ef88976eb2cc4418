"""Real libllama on tiny models and on the default one."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral.cli.default_model import find_default_model
from corral.llama import library
from tests.tools.quantize import to_q8_0


@pytest.fixture(scope="session", autouse=True)
def quiet_library() -> None:
    library.start(False)


@pytest.fixture
def model(request, models) -> Path:
    """The model that a test names as its (indirect) parameter."""
    if request.param == "q8_0":
        return to_q8_0(default_model(), models / "default-q8_0.gguf")
    return default_model() if request.param == "default" else models / f"{request.param}.gguf"


def default_model() -> Path:
    path = find_default_model()
    assert path is not None, "`make install` brings the default model"
    return path
