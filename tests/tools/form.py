"""Forms in several parts with the type of their content before them, as cases for fuzzers."""

from __future__ import annotations

FORM_WORDS = [b"\r\n", b"\r\n--XX", b"--XX--", b"\r\n\r\n", b"--", b'"', b";", b"\\", b"name=", b"filename*="]
FORM_WORDS += [b"boundary=", b"Content-Disposition: ", b"=?utf-8?q?=ff?=", b": ", b"\n", b"form-data; "]


def form(*parts: tuple[str, bytes], kind: str = "multipart/form-data; boundary=XX") -> bytes:
    """Return a case: what each part says of itself, and its data; `kind` has the boundary XX."""
    head = "--XX\r\nContent-Disposition: form-data; {}\r\n\r\n"
    body = b"".join(head.format(about).encode() + data + b"\r\n" for about, data in parts)
    return kind.encode() + b"\n" + body + b"--XX--\r\n"


def split_form(case: bytes) -> tuple[str, bytes]:
    """Return the type of the content, as a header can have it, and the body."""
    kind, _, body = case.partition(b"\n")
    return kind.translate(None, b"\r\0").decode("latin-1"), body
