"""What computes an answer: this version of Corral, and its libllama."""

from __future__ import annotations

from corral import __version__
from corral.core.libllama import PATCH_SET, VERSION

BUILD = f"b{__version__}-corral, llama-cpp-python {VERSION} with patch set {PATCH_SET}"
