"""Vectors and scores as answers."""

from __future__ import annotations

import base64
from decimal import Decimal

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from corral.api.render.embedding import (
    normalize,
    render_classes,
    render_data,
    render_list,
    render_ranks,
    render_rows,
    shape,
)
from corral.generate.prepare_embedding import Inputs

NORMS = [-1, 0, 1, 2, 3, 1024]
ROWS = [
    [3.0, -4.0, 0.0, 12.0],
    [0.0, 0.0, 0.0, 0.0],
    [-0.0, 0.0, -0.0, 0.0],
    [1e30, -2e30, 5e29, 0.0],
    [3e38, 3e38, -3e38, 3e38],
    [1e-30, -1e-31, 0.0, 2e-30],
    [1e-45, -3e-45, 0.0, 0.0],
    [1e30, 1e-30, -1.0, 0.0],
    [0.0, 0.0, -7.0, 0.0],
]


def slowly(row: list[float], p: int) -> list[float]:
    """Number by number, as llama-server does it, with exponents that cannot overflow."""
    numbers = [Decimal(x) for x in row]
    if p < 0 or not any(numbers):
        return [float(x) for x in numbers]
    if p == 0:
        norm = max(abs(x) for x in numbers) / 32760
    else:
        total = Decimal(0)
        for x in numbers:
            total += abs(x) ** p
        norm = total ** (Decimal(1) / p)
    return [float(x / norm) for x in numbers]


def array(rows) -> np.ndarray:
    return np.array(rows, np.float32)


def check(rows: np.ndarray, p: int) -> None:
    done = normalize(rows, p)
    assert (done.dtype, done.shape) == (np.dtype(np.float32), rows.shape)
    assert done.flags.c_contiguous
    expected = array([slowly(row, p) for row in rows.tolist()])
    np.testing.assert_allclose(done, expected, rtol=1e-6, atol=1e-44)


@pytest.mark.parametrize("p", NORMS)
def test_rows_are_divided_by_their_norm(p):
    check(array(ROWS), p)


finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(
    st_numpy.arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 6)), elements=finite),
    st.sampled_from(NORMS),
)
@settings(deadline=None)
def test_all_rows_that_there_can_be(rows, p):
    check(rows, p)


@pytest.mark.parametrize("p", [1, 2, 3, 1024])
def test_the_norm_is_one_afterwards(p):
    rows = normalize(np.random.default_rng(1).normal(size=(20, 300)).astype(np.float32), p)
    np.testing.assert_allclose(np.linalg.norm(rows.astype(np.float64), ord=p, axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("dimensions", [None, 1, 2, 4])
def test_rows_are_cut_and_then_normalized(p, dimensions):
    vectors = [array(ROWS[:1]), array(ROWS[1:4]), array(ROWS[4:])]
    done = shape(vectors, dimensions, p)
    assert [len(rows) for rows in done] == [1, 3, 5]
    for rows, whole in zip(done, vectors, strict=True):
        assert (rows == normalize(np.ascontiguousarray(whole[:, :dimensions]), p)).all()


def through_json(value):
    return orjson.loads(orjson.dumps(value))


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("dimensions", [None, 3])
@pytest.mark.parametrize("is_base64", [False, True])
def test_numbers_arrive_as_they_were(p, dimensions, is_base64):
    vectors = shape([array(ROWS[:4]), array(ROWS[4:])], dimensions, p)
    inputs = Inputs([[1], [2]], frozenset({1}))

    def read(row):
        return np.frombuffer(base64.b64decode(row), "<f4") if is_base64 else array(row)

    answers = through_json(render_rows(vectors, inputs, is_base64))
    assert [answer["index"] for answer in answers] == [0, 1]
    assert ["truncated" in answer for answer in answers] == [False, True]
    for answer, rows in zip(answers, vectors, strict=True):
        assert (np.stack([read(row) for row in answer["embedding"]]) == rows).all()

    data = through_json(render_data(vectors, inputs, is_base64))
    for i, (answer, rows) in enumerate(zip(data, vectors, strict=True)):
        assert (read(answer.pop("embedding")) == rows[0]).all()
        encoding = {"encoding_format": "base64"} if is_base64 else {}
        note = {"truncated": True} if i else {}
        assert answer == {"index": i, "object": "embedding", **encoding, **note}


SCORES = [array([[score]]) for score in (0.5, -3.0, 2.0, 0.5, 2.0)]
FIVE = Inputs([[1]] * 5, frozenset({2}))


@pytest.mark.parametrize(
    ("top_n", "order"), [(None, [2, 4, 0, 3, 1]), (0, []), (1, [2]), (4, [2, 4, 0, 3]), (9, [2, 4, 0, 3, 1])]
)
def test_the_best_come_first_and_ties_in_their_order(top_n, order):
    ranks = render_ranks(SCORES, FIVE, [], top_n, "score")
    assert [rank["index"] for rank in ranks] == order
    assert [rank["score"] for rank in ranks] == [float(SCORES[i][0, 0]) for i in order]
    assert [rank["index"] for rank in ranks if "truncated" in rank] == [i for i in order if i == 2]


def test_documents_come_with_their_rank():
    documents = [{"document": {"text": text}} for text in "abcde"]
    ranks = render_ranks(SCORES, FIVE, documents, 2, "relevance_score")
    assert ranks == [
        {"index": 2, "relevance_score": 2.0, "document": {"text": "c"}, "truncated": True},
        {"index": 4, "relevance_score": 2.0, "document": {"text": "e"}},
    ]


def test_the_best_label_comes_first_and_ties_in_their_order():
    vectors = [array([[0.0, 2.0, -1.0, 2.0]]), array([[4.0, 3.0, 2.0, 1.0]])]
    classes = render_classes(vectors, Inputs([[1], [2]], frozenset({1})), ["a", "b", "c", "d"])
    assert classes == [
        [
            {"label": label, "score": score}
            for label, score in zip("bdac", (2.0, 2.0, 0.0, -1.0), strict=True)
        ],
        [
            {"label": label, "score": score, "truncated": True}
            for label, score in zip("abcd", (4.0, 3.0, 2.0, 1.0), strict=True)
        ],
    ]
    many = [str(i) for i in range(100)]
    (ranked,) = render_classes([array([[i % 2 for i in range(100)]])], Inputs([[1]]), many)
    assert [item["label"] for item in ranked] == many[1::2] + many[::2]


@pytest.mark.parametrize("warnings", [[], ["hot"]])
def test_a_list_says_what_it_took(warnings):
    answer = render_list("m", Inputs([[1, 2], [3]]), warnings, data=[])
    usage = {"prompt_tokens": 3, "total_tokens": 3}
    noted = {"warnings": warnings} if warnings else {}
    assert answer == {"model": "m", "object": "list", "usage": usage, "data": [], **noted}
