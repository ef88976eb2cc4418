"""Reading ahead of what has come gives what reading all at once would."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.chat.event import Content
from corral.chat.reader import MessageParser, Reader
from tests.tools.answer import drain
from tests.tools.cuts import cuts

texts = st.text("ab \n", max_size=20)


def run(read, pieces):
    """What reading returns, and the text that is left."""
    reader, result = Reader(), []

    def steps():
        result.append((yield from read(reader)))
        yield from reader.rest(result.append)

    drain(MessageParser(reader, steps()), pieces)
    return result[0], "".join(result[1:])


@st.composite
def pieces_of(draw, source):
    """A text, and it in letters or in larger pieces."""
    text, pieces = draw(cuts(source))
    return text, draw(st.sampled_from([pieces, list(text)]))


def first_of(text, markers):
    """The leftmost of the markers, the longest of several at one place."""
    places = [(text.find(marker), -len(marker), marker) for marker in markers if marker in text]
    at, _, marker = min(places, default=(len(text), 0, None))
    return at, marker


@pytest.mark.parametrize("markers", [("a",), ("a", "ab"), ("abb", "b"), ("aab", "ab", "a"), ("abab", "ba")])
def test_text_up_to_the_first_marker(markers):
    for text in map("".join, itertools.product("ab", repeat=6)):
        at, marker = first_of(text, markers)
        expected = (text[:at], marker), text[at + len(marker or "") :]
        for pieces in ([text], list(text), [text[:3], text[3:]]):
            assert run(lambda reader: reader.collect(*markers), pieces) == expected


@pytest.mark.parametrize("options", [("a",), ("a", "ab"), ("aab", "a", "ab"), ("abb", "b")])
def test_the_longest_of_the_options_is_accepted(options):
    for text in map("".join, itertools.product("ab", repeat=4)):
        accepted = max((option for option in options if text.startswith(option)), key=len, default=None)
        expected = accepted, text[len(accepted or "") :]
        for pieces in ([text], list(text), [text[:2], text[2:]]):
            assert run(lambda reader: reader.accept(*options), pieces) == expected


@given(pieces_of(texts), st.text("ab", min_size=1, max_size=3))
def test_an_option_is_accepted_with_the_space_before_it_or_not_at_all(cut, option):
    text, pieces = cut
    bare = text.lstrip()
    is_there = bare.startswith(option)
    accepted = text[: len(text) - len(bare) + len(option)] if is_there else None
    expected = accepted, text[len(accepted or "") :]
    assert run(lambda reader: reader.accept_past_space(option), pieces) == expected


@given(pieces_of(texts))
def test_white_space_is_skipped(cut):
    text, pieces = cut
    bare = text.lstrip()
    assert run(lambda reader: reader.skip_space(), pieces) == (text[: len(text) - len(bare)], bare)


@given(pieces_of(texts))
def test_content_is_all_of_the_text(cut):
    text, pieces = cut
    reader = Reader()
    events = drain(MessageParser(reader, reader.rest(reader.content)), pieces)
    contents = [event for event in events if isinstance(event, Content) and event.text]
    assert contents == events
    assert "".join(event.text for event in contents) == text


def test_text_is_passed_on_as_soon_as_it_cannot_be_a_marker():
    reader = Reader()
    steps: Any = reader.until(("<tool>",), reader.content)
    parser = MessageParser(reader, steps)
    assert parser.feed("Hi <to") == [Content("Hi")]
    assert parser.feed("day") == [Content(" <today")]
    assert parser.feed(" <tool>") == []
