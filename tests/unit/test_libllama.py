"""Which libllama is used, and whether it has the patches."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from corral.core import libllama
from corral.core.libllama import PATCH_SET, describe_patches, find_bindings, find_patch_set
from corral.llama import library

PATCHED = f"CPU : AVX = 1 | CORRAL_PATCH_SET = {PATCH_SET} | OPENMP = 1 | "
OLDER = PATCHED.replace(f"= {PATCH_SET} |", f"= {PATCH_SET - 1} |")
PLAIN = "CPU : AVX = 1 | OPENMP = 1 | "


@pytest.mark.parametrize(("info", "expected"), [(PATCHED, PATCH_SET), (OLDER, PATCH_SET - 1), (PLAIN, None)])
def test_a_library_says_which_patches_it_has(info, expected):
    assert find_patch_set(info) == expected
    assert (describe_patches(info) == "") == (expected == PATCH_SET)


@pytest.mark.parametrize(
    ("info", "level"), [(PATCHED, logging.INFO), (OLDER, logging.WARNING), (PLAIN, logging.WARNING)]
)
def test_the_log_names_the_patches(monkeypatch, caplog, info, level):
    monkeypatch.setattr(library, "lib", SimpleNamespace(llama_print_system_info=info.encode))
    with caplog.at_level(logging.INFO, "corral.llama"):
        library.log_patches()
    (record,) = caplog.records
    assert record.levelno == level
    assert f"patch set {PATCH_SET}" in record.getMessage()


def test_the_library_of_our_own_wheel_comes_first(monkeypatch, tmp_path):
    installed = find_bindings()
    (tmp_path / "llama_cpp").mkdir()
    (tmp_path / "llama_cpp" / "__init__.py").touch()
    monkeypatch.setattr(libllama, "BUNDLE", tmp_path)
    assert find_bindings().origin == str(tmp_path / "llama_cpp" / "__init__.py")
    monkeypatch.setattr(libllama, "BUNDLE", tmp_path / "absent")
    assert find_bindings().origin == installed.origin
