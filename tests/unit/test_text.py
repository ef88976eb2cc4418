"""Any split of a text gives the same result."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from corral.text.output import IndentGuard, OutputText
from corral.text.stop import StopFinder
from tests.tools.cuts import cuts

words = st.lists(st.text("abc", min_size=1, max_size=4), max_size=4)
texts = st.text("abc\n é🤗", max_size=40)


def joined(stage, pieces, finish=True):
    out = "".join(stage.feed(piece) for piece in pieces)
    return out + (stage.finish() if finish else "")


@given(cuts(texts), words)
def test_stop_strings_do_not_depend_on_the_split(cut, stop):
    whole, pieces = cut
    once, split = StopFinder(stop), StopFinder(stop)
    assert joined(split, pieces) == joined(once, list(whole))
    assert split.stopping_word == once.stopping_word


@given(cuts(texts), words)
def test_no_stop_string_gets_out_and_nothing_else_is_lost(cut, stop):
    whole, pieces = cut
    finder = StopFinder(stop)
    out = joined(finder, pieces)
    assert not any(word in out for word in stop)
    if finder.stopping_word:
        assert whole.startswith(out + finder.stopping_word)
    else:
        assert out == whole


def test_the_stop_string_that_is_complete_first_wins():
    finder = StopFinder(["abcd", "bc"])
    assert finder.feed("xabcd") == "xa"
    assert finder.stopping_word == "bc"


@given(cuts(st.binary(max_size=40)))
def test_characters_come_out_whole(cut):
    whole, pieces = cut
    split, once = OutputText([], 0), OutputText([], 0)
    assert "".join(map(split.feed, pieces)) == once.feed(whole)
    assert split.is_mid_character == once.is_mid_character


def test_an_unfinished_character_waits():
    utf8 = OutputText([], 0)
    data = "🤗".encode()
    assert utf8.feed(data[:3]) == ""
    assert utf8.is_mid_character
    assert utf8.feed(data[3:]) == "🤗"


@given(cuts(texts), st.integers(0, 4))
def test_indentation_does_not_depend_on_the_split(cut, n_indent):
    whole, pieces = cut
    split, once = IndentGuard(n_indent), IndentGuard(n_indent)
    assert joined(split, pieces, finish=False) == once.feed(whole)
    assert split.is_violated == once.is_violated


def test_indentation_ends_before_the_line_that_has_too_little():
    guard = IndentGuard(4)
    assert guard.feed("def f():\n    a\n\n     b\n  c") == "def f():\n    a\n\n     b\n  "
    assert guard.is_violated


@given(cuts(texts), words, st.integers(0, 2))
def test_the_whole_output_does_not_depend_on_the_split(cut, stop, n_indent):
    whole, _ = cut
    data = whole.encode()
    by_byte = joined(OutputText(stop, n_indent), [bytes([b]) for b in data])
    assert by_byte == joined(OutputText(stop, n_indent), [c.encode() for c in whole])
