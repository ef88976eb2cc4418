"""The libllama that Corral is made for: that of llama-cpp-python, with the patches in native/patches."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
from pathlib import Path

PACKAGE = "llama_cpp"
VERSION = "0.3.36"  # of llama-cpp-python
PATCH_SET = 4  # as native/patches/0001 makes libllama report it
BUNDLE = Path(__file__).parents[1] / "_native"  # only in wheels: see setup.py


def find_bindings() -> importlib.machinery.ModuleSpec | None:
    """The package of bindings in our own wheel, else an installed one."""
    bundled = importlib.machinery.PathFinder.find_spec(PACKAGE, [str(BUNDLE)])
    return bundled or importlib.util.find_spec(PACKAGE)


def find_patch_set(system_info: str) -> int | None:
    """Which patches a library has, by what `llama_print_system_info` says of it."""
    found = re.search(r"\bCORRAL_PATCH_SET = (\d+)", system_info)
    return int(found[1]) if found else None


def describe_patches(system_info: str) -> str:
    """What is wrong with a library's patches; nothing: it has the right ones."""
    found = find_patch_set(system_info)
    if found == PATCH_SET:
        return ""
    have = "none of Corral's patches" if found is None else f"patch set {found}"
    return f"libllama has {have}, patch set {PATCH_SET} is expected: answers may depend on other requests"
