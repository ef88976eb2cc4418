"""`--api-key-file`: a key in every line that is neither empty nor a comment."""

from __future__ import annotations

from pathlib import Path

from corral.core.errors import CorralError


def read_key_file(path: str) -> list[str]:
    """Raises CorralError where the file cannot be read, or protects nothing."""
    try:
        lines = Path(path).read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise CorralError(f"--api-key-file '{path}' cannot be read: {reason}") from None
    keys = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    if not keys:
        raise CorralError(f"--api-key-file '{path}' holds no key; write one into each line")
    return keys
