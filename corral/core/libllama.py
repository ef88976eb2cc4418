"""The libllama that Corral is built for: that of llama-cpp-python, with the patches in native/patches.

Imports only the standard library: native/build.py reads this before anything is installed.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
from pathlib import Path

PACKAGE = "llama_cpp"
VERSION = "0.3.36"  # of llama-cpp-python
BUILD_INFO = "b11312-0c1e57098"  # of the llama.cpp in it, as llama-server reports its own
PATCH_SET = 5  # as native/patches/0001 makes libllama report it
BUNDLE = Path(__file__).parents[1] / "_native"  # only in wheels: see setup.py


def find_bindings() -> importlib.machinery.ModuleSpec | None:
    """Find the bindings in our own wheel, otherwise an installed package."""
    bundled = importlib.machinery.PathFinder.find_spec(PACKAGE, [str(BUNDLE)])
    return bundled or importlib.util.find_spec(PACKAGE)


def find_patch_set(system_info: str) -> int | None:
    """Return a library's patch set, from the output of `llama_print_system_info`."""
    found = re.search(r"\bCORRAL_PATCH_SET = (\d+)", system_info)
    return int(found[1]) if found else None


def describe_patches(system_info: str) -> str:
    """Describe what is wrong with a library's patches; empty if they are the right ones."""
    found = find_patch_set(system_info)
    if found == PATCH_SET:
        return ""
    have = "none of Corral's patches" if found is None else f"patch set {found}"
    return f"libllama has {have}, patch set {PATCH_SET} is expected: answers may depend on other requests"
