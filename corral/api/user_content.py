"""Headers of content that a client has stored: a browser saves it, or shows it and runs nothing in it."""

from __future__ import annotations

from collections.abc import Mapping

USER_CONTENT: Mapping[str, str] = {
    "content-disposition": "attachment",
    "content-security-policy": "default-src 'none'; sandbox",
}
