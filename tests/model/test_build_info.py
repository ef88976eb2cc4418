"""The build that is reported is that of the library."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from corral.core.libllama import BUILD_INFO, find_bindings


def test_the_library_is_of_the_commit_that_is_reported():
    spec = find_bindings()
    assert spec is not None
    assert spec.origin is not None
    (path, *_) = sorted((Path(spec.origin).parent / "lib").glob("*ggml-base*"))
    commit = ctypes.CDLL(str(path)).ggml_commit
    commit.restype = ctypes.c_char_p
    built = commit().decode().removesuffix("-dirty")  # patched
    if built == "unknown":
        pytest.skip("the library was built without its repository")
    assert BUILD_INFO.partition("-")[2].startswith(built)
