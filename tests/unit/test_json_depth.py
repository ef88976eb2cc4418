"""How deep JSON is, against a reader that goes byte by byte, and what is refused for it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.errors import InvalidRequest
from corral.text.json_depth import MAX_CONTAINERS, MAX_DEPTH, MAX_VALUES, JsonDepth, JsonGuard

SIGNS = st.lists(st.sampled_from(['"', "\\", "[", "]", "{", "}", "a", ",", "é"]), max_size=60).map("".join)
VALUES = st.recursive(
    st.none() | st.integers() | SIGNS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(SIGNS, inner, max_size=4),
    max_leaves=40,
)


def measure(text: bytes) -> tuple[int, int]:
    """The deepest nesting and the number of arrays and objects, as JSON's grammar has it."""
    deepest = depth = n_containers = 0
    is_string = is_escaped = False
    for byte in text:
        sign = chr(byte)
        if is_escaped:
            is_escaped = False
        elif is_string:
            is_escaped = sign == "\\"
            is_string = sign != '"'
        elif sign == '"':
            is_string = True
        elif sign in "[{":
            depth, n_containers = depth + 1, n_containers + 1
            deepest = max(deepest, depth)
        elif sign in "]}":
            depth -= 1
    return deepest, n_containers


def feed_in_parts(text: bytes, cuts: list[int]) -> tuple[int, int]:
    gauge, before = JsonDepth(), 0
    for cut in [*sorted(cut % (len(text) + 1) for cut in cuts), len(text)]:
        gauge.feed(text[before:cut])
        before = cut
    return gauge.deepest, gauge.n_containers


CUTS = st.lists(st.integers(0, 1000), max_size=8)


@given(VALUES, CUTS, st.booleans())
def test_it_is_exact_for_json(value, cuts, is_ascii):
    text = json.dumps(value, ensure_ascii=is_ascii).encode()
    assert feed_in_parts(text, cuts) == measure(text)


@given(SIGNS, CUTS)
def test_and_never_too_low_for_anything_else(signs, cuts):
    """Outside of strings no parser goes on behind a backslash."""
    text = signs.encode()
    readable = text[: next((i for i in range(len(text)) if is_stray(text, i)), len(text))]
    assert feed_in_parts(readable, cuts) == measure(readable)
    assert feed_in_parts(text, cuts) >= measure(readable)


def is_stray(text: bytes, at: int) -> bool:
    return text[at] == ord("\\") and measure(text[:at] + b"[")[1] > measure(text[:at])[1]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_runs_of_backslashes_across_parts(n):
    text = b'["' + b"\\" * n + b'"[[' + b'"[]]'
    for cut in range(len(text)):
        assert feed_in_parts(text, [cut]) == measure(text)


def test_long_texts_are_one_text():
    piece = b'"[[[\\\\\\"[[[", '
    text = b"[" + piece * 30_000 + b"{}]"
    assert feed_in_parts(text, []) == feed_in_parts(text, [100_001, 200_003]) == (2, 2)


def guard(text: bytes, n_part: int) -> None:
    watch = JsonGuard()
    for at in range(0, len(text), n_part):
        watch.feed(text[at : at + n_part])
    watch.finish()


@pytest.mark.parametrize("n_part", [1, 7, 100_000])
@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_the_limit(opening, n_part):
    guard(opening * MAX_DEPTH, n_part)
    guard(b'["' + opening.replace(b'"', b'\\"') * 1000 + b'"]', n_part)
    with pytest.raises(InvalidRequest, match="128"):
        guard(opening * (MAX_DEPTH + 1), n_part)
    with pytest.raises(InvalidRequest, match="128"):
        guard(b'{"a":[' + b"[]," * 50_000 + opening * (MAX_DEPTH - 1), max(n_part, 1000))


def test_too_many_containers():
    guard(b"[" + b"[]," * (MAX_CONTAINERS - 2) + b"[]]", 1 << 20)
    guard(b'["' + b"[]" * MAX_CONTAINERS + b'"]', 1 << 20)
    with pytest.raises(InvalidRequest, match=str(MAX_CONTAINERS)):
        guard(b"[" + b"[]," * (MAX_CONTAINERS - 1) + b"[]]", 1 << 20)


def test_it_is_refused_before_it_is_whole():
    watch = JsonGuard()
    watch.feed(b"[" * 10_000)
    with pytest.raises(InvalidRequest):
        watch.feed(b"[" * 60_000)


def test_too_many_values():
    guard(b"[" + b"1," * MAX_VALUES + b"1]", 1 << 20)
    with pytest.raises(InvalidRequest, match=str(MAX_VALUES)):
        guard(b"[" + b"1," * (MAX_VALUES + 1) + b"1]", 1 << 20)
