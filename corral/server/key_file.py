"""Read `--api-key-file`: one key per line; empty lines and comments are skipped."""

from __future__ import annotations

from pathlib import Path

from corral.core.errors import CorralError


def read_key_file(path: str) -> list[str]:
    """Return the lines with keys. Raises CorralError if the file cannot be read or has no keys."""
    try:
        lines = Path(path).read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise CorralError(f"--api-key-file '{path}' cannot be read: {reason}") from None
    keys = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    if not keys:
        raise CorralError(f"--api-key-file '{path}' has no keys; write one per line")
    return keys
