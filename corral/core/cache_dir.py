"""The directory of files that can be created again."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from corral.core.errors import CorralError


def cache_dir(environ: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """Return `$LLAMA_CACHE`, or the system's cache directory for Corral."""
    if environ.get("LLAMA_CACHE"):
        return Path(environ["LLAMA_CACHE"])
    try:
        if platform == "darwin":
            return Path("~/Library/Caches/corral").expanduser()
        return Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "corral"
    except RuntimeError:
        raise CorralError("no home directory for the cache; set LLAMA_CACHE to a directory") from None
