"""Long JSON in pieces: the same value as at once, or the same refusal."""

from __future__ import annotations

import json
import math

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.api import json_pieces
from corral.api.json_pieces import NotJson, parse_pieces
from corral.text import json_depth
from corral.text.json_depth import JsonGuard

TEXTS = st.text(st.sampled_from('a"\\,[]{}:é🤗\n/u0\ud7ff'), max_size=30)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, width=32) | TEXTS,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(TEXTS, inner, max_size=6),
    max_leaves=60,
)


@pytest.fixture
def tiny_pieces(monkeypatch):
    """Cut everywhere, as only very long texts are."""
    monkeypatch.setattr(json_depth, "SLICE_BYTES", 8)
    monkeypatch.setattr(json_pieces, "SLICE_BYTES", 8)
    monkeypatch.setattr(json_pieces, "_LONG_BYTES", 12)


def parse(text: bytes):
    guard = JsonGuard()
    guard.feed(text)
    guard.finish(is_long=True)
    return parse_pieces(bytearray(text), guard.cuts)


class TestTiny:
    @pytest.fixture(autouse=True)
    def _tiny(self, tiny_pieces):
        pass

    @given(VALUES, st.booleans(), st.sampled_from([None, 1]))
    def test_any_value_is_the_same(self, value, is_ascii, indent):
        if isinstance(value, float) and not math.isfinite(value):
            return
        text = json.dumps(value, ensure_ascii=is_ascii, indent=indent, allow_nan=True).encode()
        try:
            expected = orjson.loads(text)
        except orjson.JSONDecodeError:
            with pytest.raises(NotJson):
                parse(text)
        else:
            assert parse(text) == expected

    @given(
        VALUES, st.integers(0, 500), st.sampled_from([b"", b",", b"[", b"}", b'"', b"\\", b" ", b"1", b":"])
    )
    def test_what_is_broken_is_refused_as_at_once(self, value, at, instead):
        text = json.dumps({"a": [value, value], "b": value}).encode()
        at %= len(text)
        broken = text[:at] + instead + text[at + 1 :]
        try:
            expected = orjson.loads(broken)
        except orjson.JSONDecodeError:
            with pytest.raises(NotJson):
                parse(broken)
        else:
            assert parse(broken) == expected

    @pytest.mark.parametrize(
        "text", ["\\" * 40, "é" * 30, "🤗" * 30, "\\u" * 20, '"' * 30, "a\\" * 20, "a🤗\n" * 9]
    )
    def test_strings_are_cut_between_characters(self, text):
        for is_ascii in (True, False):
            assert parse(json.dumps([text, text], ensure_ascii=is_ascii).encode()) == [text, text]


@pytest.mark.parametrize(
    "value",
    [
        {"prompt": list(range(100_000)), "n": 1},
        {"prompt": "héllo, [world] " * 50_000},
        {
            "messages": [{"role": "user", "content": [{"url": "x" * 400_000}] * 2}] * 3,
            "a": {"b": [[1] * 9] * 9999},
        },
        [["a"] * 70_000, {"k": 5}],
    ],
)
def test_long_values_are_the_same(value):
    assert parse(orjson.dumps(value)) == value


def test_the_last_of_two_fields_with_one_name_counts():
    long = list(range(50_000))
    text = b'{"a":%b,"b":1,"a":[%b]}' % (orjson.dumps(long), orjson.dumps(long))
    assert parse(text) == {"a": [long], "b": 1}


def test_a_long_field_name_in_front_of_a_long_value_is_refused():
    with pytest.raises(NotJson, match="field name"):
        parse(orjson.dumps({"k" * 10_000: "v" * 500_000}))


def test_fields_of_the_outermost_object_are_counted_before_it_is_whole():
    guard = JsonGuard(max_fields=1000)
    guard.feed(b'{"messages":[' + b"1," * 60_000)
    assert not guard.has_many_fields
    guard.feed(b"1]" + b"".join(b',"k%d":{"a":1,"b":2}' % i for i in range(5000)))
    assert guard.has_many_fields
