"""Times as some APIs write them."""

from __future__ import annotations

from datetime import datetime, timezone


def timestamp(seconds: float) -> str:
    """Return a time since 1970 as in RFC 3339, in UTC."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")
