"""The text of web pages: what a reader sees, in whatever encoding, in linear time."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.media.decoded import BadMedia
from corral.media.page import page_text

HTML = "text/html; charset=utf-8"


def test_what_a_reader_sees():
    page = b"""<!doctype html><html><head><title>Foxes &amp; rivers</title><style>p { color: red }</style>
      <script>steal("<p>")</script></head><body><!-- <p>secret</p> --><h1>Three   foxes</h1>
      <p>They <b>could</b> not&nbsp;swim.</p><ul><li>one<li>two</ul><noscript>no</noscript>&lt;end&gt;"""
    wanted = "Foxes & rivers\nThree foxes\nThey could not swim.\none\ntwo\n<end>"
    assert page_text(page, HTML) == wanted


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (b" plain <b>text</b> ", "text/plain", "plain <b>text</b>"),
        (b'{"a": 1}', "application/json", '{"a": 1}'),
        ("füchse".encode("latin-1"), "text/plain; charset=ISO-8859-1", "füchse"),
        ("<meta charset=windows-1252><p>füchse".encode("cp1252"), "text/html", "füchse"),
        ("狐".encode("shift_jis"), "text/html;charset=Shift_JIS", "狐"),
        ("füchse".encode(), "text/plain; charset=idna", "füchse"),  # not one that pages have
        (b"caf\xff", "text/plain", "caf�"),
        (b"<html><p>no type", "", "no type"),
        (b"<p>cut <scr", HTML, "cut"),
        (b"<p>open <!-- for ever", HTML, "open"),
        (b"", HTML, ""),
    ],
)
def test_kinds_and_encodings(body, kind, text):
    assert page_text(body, kind) == text


@pytest.mark.parametrize(
    ("body", "kind"), [(b"GIF89a", "image/gif"), (b"%PDF-", "application/pdf"), (b"a\0b", "text/plain")]
)
def test_what_is_not_a_text(body, kind):
    with pytest.raises(BadMedia):
        page_text(body, kind)


@given(st.text(alphabet="<>/!-ap script&;=\"' \n"))
def test_no_tag_is_left_and_nothing_fails(page):
    assert "<script" not in page_text(page.encode(), HTML)


HOSTILE = ["<a ", "<script>", "<!--", "<p>", "\n ", "&", "</p", "&#x", "<", "<svg></sv", "<!-"]


@pytest.mark.parametrize("piece", HOSTILE)
def test_time_is_in_step_with_the_length(piece):
    def seconds(n_chars: int) -> float:
        page = (piece * (n_chars // len(piece))).encode()
        begun = time.process_time()
        page_text(page, HTML)
        return time.process_time() - begun

    assert seconds(320_000) < 60 * (seconds(20_000) + 0.02), "sixteen times as long"
