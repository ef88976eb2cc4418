"""Decode `data:` URIs (RFC 2397) and bare base64 to bytes, without looking at their content."""

from __future__ import annotations

import base64
import binascii
import re
from urllib.parse import unquote_to_bytes

from corral.core.media_item import MediaKind
from corral.media.decoded import BadMedia

_SCHEME = "data:"
_MAX_HEADER = 4096
_MAX_ESCAPES = 1 << 20  # each takes about fifty bytes while they are decoded
_HEADER_PART = re.compile(r'"(?:[^"\\]|\\.)*"|,', re.DOTALL)
_BASE64 = re.compile(r";\s*base64\s*\Z", re.IGNORECASE)
_SPACE = b" \t\n\v\f\r"


def parse_data_uri(uri: str, kind: MediaKind) -> bytes:
    """Decode the URI if its declared type is of this kind; the subtype does not matter."""
    if not is_data_uri(uri):
        raise BadMedia("is not a data: URI")
    comma = _find_comma(uri)
    header = uri[len(_SCHEME) : comma]
    _check_type(header.partition(";")[0].strip().lower() or "text/plain", kind)
    text = uri[comma + 1 :]
    if _BASE64.search(header) is None:
        return _require(_unescape(text))
    return _decode(_unescape(text) if "%" in text else _encode(text))


def is_data_uri(uri: str) -> bool:
    return uri[: len(_SCHEME)].lower() == _SCHEME


def decode_base64(text: str) -> bytes:
    """Decode the standard alphabet; white space and missing padding are accepted."""
    return _decode(_encode(text))


def _find_comma(uri: str) -> int:
    """Find the comma that ends the header, outside of quotes."""
    for part in _HEADER_PART.finditer(uri, len(_SCHEME), len(_SCHEME) + _MAX_HEADER):
        if part[0] == ",":
            return part.start()
    raise BadMedia("is not a data: URI: its media type is not followed by a comma")


def _check_type(declared: str, kind: MediaKind) -> None:
    if not declared.startswith(f"{kind.value}/"):
        shown = "".join(c if c.isascii() and c.isprintable() else "?" for c in declared[:40])
        raise BadMedia(f"is declared as '{shown}', not as '{kind.value}/...'")


def _unescape(text: str) -> bytes:
    if text.count("%") > _MAX_ESCAPES:
        raise BadMedia(f"has more than {_MAX_ESCAPES} percent-encoded characters; use base64")
    return unquote_to_bytes(text.encode("utf-8", "surrogatepass"))


def _encode(text: str) -> bytes:
    try:
        return text.encode("ascii")
    except UnicodeEncodeError:
        raise _broken() from None


def _decode(text: bytes) -> bytes:
    text = text.translate(None, _SPACE)
    digits = text.rstrip(b"=")
    n_missing = -len(digits) % 4
    if len(text) - len(digits) > n_missing:
        raise _broken()
    try:
        return _require(base64.b64decode(digits + b"=" * n_missing, validate=True))
    except binascii.Error:
        raise _broken() from None


def _broken() -> BadMedia:
    return BadMedia("is not valid base64")


def _require(data: bytes) -> bytes:
    if not data:
        raise BadMedia("is empty")
    return data
