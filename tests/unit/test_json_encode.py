"""Answers in pieces: the same JSON as at once, and no piece much longer than others."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.api import json_encode
from corral.api.json_encode import Rows, encode_json, encode_pieces

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=5),
    max_leaves=30,
)


@pytest.fixture
def tiny_pieces(monkeypatch):
    for name, value in {"PIECE_BYTES": 4, "_PIECE_CHARS": 3, "_PIECE_ITEMS": 4, "_FEW_ITEMS": 2}.items():
        monkeypatch.setattr(json_encode, name, value)


class TestTiny:
    @pytest.fixture(autouse=True)
    def _tiny(self, tiny_pieces):
        pass

    @given(VALUES)
    def test_any_value_is_the_same(self, value):
        assert orjson.loads(b"".join(encode_pieces(value))) == orjson.loads(orjson.dumps(value))

    @given(st.lists(st.integers(0, 99), max_size=20), st.integers(1, 9))
    def test_rows_are_a_list(self, items, weight):
        rows = Rows(items, lambda i: {"id": i, "more": Rows([i] * 3, str)}, weight)
        value = {"a": rows, "b": [rows, ()], "c": {}}
        expected = [{"id": i, "more": [str(i)] * 3} for i in items]
        for encoded in (b"".join(encode_pieces(value)), encode_json(value)):
            assert orjson.loads(encoded) == {"a": expected, "b": [expected, []], "c": {}}
        assert len(rows) == len(items)


@pytest.mark.parametrize(
    "value",
    [
        {"text": "héllo\n" * 200_000},
        {"tokens": list(range(300_000))},
        [{"probs": [{"id": i, "bytes": [1, 2, 3], "top": [{"p": 0.5}] * 5} for i in range(20_000)]}] * 2,
        Rows(range(2_000), lambda i: Rows(range(500), lambda k: [i, k]), 1000),
    ],
    ids=["text", "numbers", "nested", "rows"],
)
def test_pieces_are_short(value):
    pieces = list(encode_pieces(value))
    assert len(pieces) > 10
    assert max(map(len, pieces)) < 4 * json_encode.PIECE_BYTES
    assert b"".join(pieces) == encode_json(value)


def test_rows_are_rendered_only_when_they_are_sent():
    n_rendered = 0

    def render(item: int) -> str:
        nonlocal n_rendered
        n_rendered += 1
        return "x" * 100

    pieces = encode_pieces({"rows": Rows(range(100_000), render)})
    next(pieces)
    assert 0 < n_rendered < 2_000
