"""The Content-Security-Policy of the frames in which the page previews what a model has written.

Such a document has an origin of its own (`sandbox`), reaches no host, this one included, and only pages of
this server may frame it. `/artifact/still` runs nothing but the script of `webui/artifact.html` itself.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

FILE = "artifact.html"
PATHS = ("/artifact/still", "/artifact/run")
_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.S)
_COMMON = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:; "
    "media-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'; "
    "sandbox allow-scripts"
)


def artifact_headers(path: str, file: Path) -> Mapping[str, str]:
    """Return the headers of one of PATHS; `file` is FILE."""
    script = "'unsafe-inline'" if path.endswith("/run") else _hash_of(file)
    return {
        "content-security-policy": f"{_COMMON}; script-src {script}",
        "x-frame-options": "SAMEORIGIN",
        "x-dns-prefetch-control": "off",
    }


def _hash_of(file: Path) -> str:
    found = _SCRIPT.search(file.read_bytes())
    assert found, f"{file} has no script"
    return f"'sha256-{base64.b64encode(hashlib.sha256(found[1]).digest()).decode()}'"
