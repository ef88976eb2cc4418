"""JSON inside generated text, in whatever pieces it comes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.chat.json_text import (
    JsonEndFinder,
    parse_json,
    read_call,
    read_call_list,
    read_string,
    read_value,
    replace_surrogates,
)
from corral.chat.reader import MessageParser, Reader
from tests.tools.answer import Message, collect, drain
from tests.tools.cuts import cuts
from tests.tools.examples import examples

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def written(draw):
    """The JSON of a value, in one of the ways to write it."""
    indent = draw(st.sampled_from([None, 2]))
    return json.dumps(draw(values), ensure_ascii=draw(st.booleans()), indent=indent)


def run(read, pieces):
    """What a reading function passes on, what it returns, and the text it leaves."""
    reader, emitted, left, result = Reader(), [], [], []

    def steps():
        result.append((yield from read(reader, emitted.append)))
        yield from reader.rest(left.append)

    drain(MessageParser(reader, steps()), pieces)
    return "".join(emitted), result[0], "".join(left)


@examples(200)
@given(cuts(written()), st.sampled_from([" ", ",", "}", "]", "\n</tool_call>"]))
def test_a_value_ends_where_it_ends(cut, tail):
    text, pieces = cut
    assert run(read_value, [*pieces, tail]) == (text, True, tail)


@given(cuts(written()))
def test_a_value_at_the_end_of_the_text_is_whole(cut):
    text, pieces = cut
    assert run(read_value, pieces) == (text, True, "")


@pytest.mark.parametrize("text", ["", "{", '{"a": [1', '"abc', '"abc\\"', "[[]"])
def test_a_value_that_is_cut_off_is_not_whole(text):
    assert run(read_value, list(text)) == (text, False, "")


def test_a_scanner_does_not_look_into_strings():
    scanner = JsonEndFinder()
    assert scanner.feed('{"}\\"]": "[{"') == 13
    assert not scanner.is_complete
    assert scanner.feed("}}") == 1
    assert scanner.is_complete


def test_a_scanner_takes_the_quotes_of_others():
    text = """['it"s', "it's", '\\'']"""
    scanner = JsonEndFinder("\"'")
    assert scanner.feed(text + "]") == len(text)
    assert scanner.is_complete


@examples(200)
@given(cuts(st.text().map(json.dumps) | st.text().map(lambda text: json.dumps(text, ensure_ascii=False))))
def test_strings_come_out_decoded(cut):
    text, pieces = cut
    assert run(read_string, pieces) == (json.loads(text), True, "")


units = st.sampled_from(
    ["\\ud83e", "\\udd17", "\\uD83E\\uDD17", "\\u00e9", "\\n", "\\\\", "a", "é", "🤗", '\\"']
)


@examples(200)
@given(cuts(st.lists(units).map(lambda parts: f'"{"".join(parts)}"')))
def test_halves_of_surrogate_pairs_find_each_other_in_any_pieces(cut):
    text, pieces = cut
    assert run(read_string, [*pieces, " "]) == (replace_surrogates(json.loads(text)), True, " ")


@pytest.mark.parametrize(
    ("text", "decoded", "left"),
    [
        ('"abc', "abc", ""),
        ("abc", "", "abc"),
        ('"a\\qb"', "a", '\\qb"'),
        ('"a\nb"', "a", '\nb"'),
        ('"a\\u00zz"', "a", '\\u00zz"'),
        ('"\\ud83e\\udd1"', "", '\\ud83e\\udd1"'),
        ('"a\\', "a", "\\"),
    ],
)
def test_a_string_that_is_none_ends_where_that_shows(text, decoded, left):
    assert run(read_string, [text]) == (decoded, False, left)
    assert run(read_string, list(text)) == (decoded, False, left)


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "-Infinity", "", "{,}", "[" * 100_000, "01"])
def test_what_is_no_json_is_no_value(text):
    assert parse_json(text) is ...


def call_in(text, **options):
    """The message in a text that is one call, and what is wrong with that."""
    reader, problems = Reader(), []

    def steps():
        reader.begin_raw()
        problems.append((yield from read_call(reader, **options)))
        if problems[0]:
            reader.no_call(problems[0])
        reader.end_raw()
        yield from reader.rest(reader.content)

    return collect(drain(MessageParser(reader, steps()), list(text))), problems[0]


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "f", "arguments": {"a": [1, "}"]}}',
        '{"arguments":{"a":[1,"}"]},"name":"f"}',
        '{ "id" : "x" , "type": "function", "name" : "f" , "parameters" : {"a": [1, "}"]} , "more": [{}] }',
        '{"name": "f", "arguments": "{\\"a\\": [1, \\"}\\"]}"}',
        '{"arguments": "{\\"a\\": [1, \\"}\\"]}", "name": "f"}',
        '{"name": "f", "arguments": {"a": [1, "}"]}, "arguments": {"a": 2}}',
    ],
)
def test_a_call_may_be_written_in_many_ways(text):
    assert call_in(text) == (Message(calls=[("f", {"a": [1, "}"]})]), "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "not a JSON object"),
        ('{"name": "f"', "not a JSON object"),
        ('{"name" "f"}', "not a JSON object"),
        ('{"name": f}', "not a JSON object"),
        ('{1: "f"}', "not a JSON object"),
        ("{}", "has no function name"),
        ('{"name": 1, "arguments": {}}', "has no function name"),
        ('{"name": "", "arguments": {}}', "has no function name"),
        ('{"name": "f", "arguments": null}', "arguments are not a JSON object"),
        ('{"name": "f", "arguments": {"a" 1}}', "arguments are not a JSON object"),
        ('{"name": "f", "arguments": "[1]"}', "arguments are not a JSON object"),
        ('{"arguments": [1], "name": "f"}', "arguments are not a JSON object"),
        ('{"name": "f", "arguments": {"a": 1', "arguments are incomplete"),
    ],
)
def test_a_call_that_is_none_comes_back_with_the_reason(text, problem):
    message, reason = call_in(text)
    assert problem in reason
    assert message == Message(text, n_diagnoses=1)


def test_only_known_functions_count_where_they_are_given():
    assert call_in('{"name": "f"}', known=["f"])[1] == ""
    assert call_in('{"name": "g"}', known=["f"])[1] == "there is no function 'g'"


def test_names_are_text_that_can_be_encoded():
    message, _ = call_in('{"name": "f\\ud83e"}')
    assert message.calls == [("f\ufffd", {})]


@pytest.mark.parametrize(
    ("text", "names", "left"),
    [
        ("[]", [], ""),
        ('{"name": "f"}!', ["f"], "!"),
        ('[{"name": "f"}, {"name": "g"}]!', ["f", "g"], "!"),
        ('[ {"name": "f"} {"name": "g"}]', ["f"], '{"name": "g"}]'),
        ('[{"name": "f"},]', ["f"], ""),
    ],
)
def test_calls_in_a_list(text, names, left):
    reader = Reader()

    def steps():
        reader.begin_raw()
        assert (yield from read_call_list(reader, read_call)) == ""
        reader.end_raw()
        yield from reader.rest(reader.content)

    message = collect(drain(MessageParser(reader, steps()), list(text)))
    assert ([name for name, _ in message.calls], message.content) == (names, left)
