"""Real libllama on tiny models, written once into the ignored `.cache` of the repository."""

from __future__ import annotations

import ctypes
import hashlib
import os
from pathlib import Path
from types import ModuleType

import pytest
from llama_cpp import llama_cpp as lib

from corral.cli.default_model import find_default_model
from corral.llama import library
from tests.tools import minilm, tiny_encoders, tiny_models

_CACHE = Path(__file__).parents[2] / ".cache"


@pytest.fixture(scope="session")
def models() -> Path:
    """The directory with the tiny models."""
    return _write_all("models", tiny_models)


@pytest.fixture(scope="session")
def encoders() -> Path:
    """The directory with the tiny models that answer with vectors and scores."""
    return _write_all("encoders", tiny_encoders, tiny_models)


@pytest.fixture(scope="session")
def minilm_path() -> Path:
    """A real embedding model."""
    return _write_all("minilm", minilm, tiny_encoders, tiny_models) / "all-minilm-l6-v2.gguf"


@pytest.fixture
def model(request, models) -> Path:
    """The model that a test names as its (indirect) parameter."""
    if request.param == "q8_0":
        return _quantize(models / "default-q8_0.gguf")
    return _default_model() if request.param == "default" else models / f"{request.param}.gguf"


def _write_all(name: str, script: ModuleType, *parts: ModuleType) -> Path:
    """Writes what `script` does into a directory whose name changes with it and the `parts` it is made of."""
    library.start(False)
    recipe = b"".join(Path(module.__file__).read_bytes() for module in (script, *parts))
    directory = _CACHE / f"{name}-{hashlib.sha256(recipe).hexdigest()[:12]}"
    for write in script.ALL:
        write(directory)
    return directory


def _default_model() -> Path:
    path = find_default_model()
    assert path is not None, "`make install` brings the default model"
    return path


def _quantize(path: Path) -> Path:
    """The default model in Q8_0, which libllama repacks when it loads it."""
    if not path.exists():
        params = lib.llama_model_quantize_default_params()
        params.ftype = lib.LLAMA_FTYPE_MOSTLY_Q8_0
        params.allow_requantize = True
        beside = path.with_suffix(f".{os.getpid()}")
        source = str(_default_model()).encode()
        assert lib.llama_model_quantize(source, str(beside).encode(), ctypes.byref(params)) == 0
        beside.replace(path)
    return path
