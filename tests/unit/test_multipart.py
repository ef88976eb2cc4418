"""Forms: what clients send is what is read, and what is malformed is refused."""

from __future__ import annotations

import contextlib

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.api.multipart import MAX_PARTS, Part, boundary_of, parse_form
from corral.core.errors import InvalidRequest

names = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=20)
B = b"bound"


@given(st.lists(st.tuples(names, st.binary(max_size=200)), min_size=1, max_size=5), st.binary(max_size=500))
def test_a_form_is_read_as_it_was_written(fields, audio):
    files = [*((name, (None, data)) for name, data in fields), ("file", ("ä b.wav", audio, "audio/wav"))]
    request = httpx.Request("POST", "http://x", files=files)
    parts = parse_form(request.read(), boundary_of(request.headers["content-type"]))
    assert [(part.name, part.data) for part in parts] == [*fields, ("file", audio)]
    assert [part.filename is None for part in parts] == [*(True for _ in fields), False]


def test_quoted_names_and_other_headers():
    head = b'Content-Type: text/plain\r\nContent-Disposition: form-data; name="a"'
    body = b"--bound\r\n" + head + b"\r\n\r\n1\r\n--bound--\r\n"
    assert parse_form(body, B) == [Part("a", None, b"1")]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--bound",
        b"--bound\r\n",
        b"hello",
        b'--bound\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n',
        b"--bound\r\nContent-Disposition: form-data\r\n\r\n1\r\n--bound--",
        b"--bound\r\nno head\r\n--bound--",
        b'--bound\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n' * (MAX_PARTS + 1) + b"--bound--",
        b"--bound\r\nX: " + b"y" * 10_000 + b"\r\n\r\n1\r\n--bound--",
    ],
    ids=lambda body: body[:40],
)
def test_a_malformed_form_is_refused(body):
    with pytest.raises(InvalidRequest):
        parse_form(body, B)


@pytest.mark.parametrize(
    "kind", ["", "application/json", "multipart/form-data", "multipart/form-data; boundary="]
)
def test_a_body_that_is_no_form(kind):
    with pytest.raises(InvalidRequest):
        boundary_of(kind)


@given(st.binary(max_size=300))
def test_any_bytes(body):
    with contextlib.suppress(InvalidRequest):
        parse_form(b"--bound" + body, B)
