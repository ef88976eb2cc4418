"""What computes an answer: this version of Corral, and its libllama."""

from __future__ import annotations

from corral import BUILD_INFO
from corral.core.libllama import PATCH_SET, VERSION

BUILD = f"{BUILD_INFO}, llama-cpp-python {VERSION} with patch set {PATCH_SET}"
