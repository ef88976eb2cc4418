"""Render vectors and scores."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from corral.api.render.warning import render_warnings
from corral.core.chunk import FloatArray
from corral.generate.prepare_embedding import Inputs

_INT16_RANGE = 32760.0


def shape(vectors: Sequence[FloatArray], dimensions: int | None, p: int) -> list[FloatArray]:
    """Truncate all rows to `dimensions`, and normalize them."""
    ends = np.cumsum([len(rows) for rows in vectors])
    return np.split(normalize(np.concatenate(vectors)[:, :dimensions], p), ends[:-1])


def normalize(rows: FloatArray, p: int) -> FloatArray:
    """Divide rows by their p-norm; 0: scale the largest number to the range of 16 bits; negative: no
    change."""
    if p < 0:
        return np.ascontiguousarray(rows)
    largest = np.abs(rows).max(axis=1, keepdims=True).astype(np.float64)
    shares = np.divide(rows, largest, out=np.zeros(rows.shape), where=largest > 0)
    norms = np.linalg.norm(shares, ord=p, axis=1, keepdims=True) if p else np.float64(1 / _INT16_RANGE)
    unit: FloatArray = np.divide(shares, norms, out=shares, where=norms > 0).astype(np.float32)
    return unit


def render_rows(vectors: Sequence[FloatArray], inputs: Inputs, is_base64: bool) -> list[dict[str, Any]]:
    """Render llama-server's format, which allows several rows."""
    return [
        {"index": i, "embedding": [_render_row(row, is_base64) for row in rows], **_truncated(i, inputs)}
        for i, rows in enumerate(vectors)
    ]


def render_vectors(vectors: Sequence[FloatArray]) -> list[Any]:
    """Render the format of Text Embeddings Inference: nothing but the vectors."""
    return [_render_row(rows[0], is_base64=False) for rows in vectors]


def render_data(vectors: Sequence[FloatArray], inputs: Inputs, is_base64: bool) -> list[dict[str, Any]]:
    """Render OpenAI's format."""
    encoding = {"encoding_format": "base64"} if is_base64 else {}
    return [
        {
            "embedding": _render_row(rows[0], is_base64),
            "index": i,
            "object": "embedding",
            **encoding,
            **_truncated(i, inputs),
        }
        for i, rows in enumerate(vectors)
    ]


def render_ranks(
    vectors: Sequence[FloatArray], inputs: Inputs, documents: Sequence[Any], top_n: int | None, name: str
) -> list[dict[str, Any]]:
    """Render the best documents first, with their score under `name`, and the documents themselves if
    given."""
    scores = [float(rows[0, 0]) for rows in vectors]
    best = sorted(range(len(scores)), key=lambda i: -scores[i])[:top_n]
    return [
        {"index": i, name: scores[i], **(documents[i] if documents else {}), **_truncated(i, inputs)}
        for i in best
    ]


def render_classes(
    vectors: Sequence[FloatArray], inputs: Inputs, labels: Sequence[str]
) -> list[list[dict[str, Any]]]:
    """Render all labels for each input, the best first."""
    return [
        [
            {"label": labels[k], "score": float(rows[0, k]), **_truncated(i, inputs)}
            for k in np.argsort(-rows[0], kind="stable").tolist()
        ]
        for i, rows in enumerate(vectors)
    ]


def render_list(model: str, inputs: Inputs, warnings: list[str], **content: Any) -> dict[str, Any]:
    """Render the common envelope of these routes' responses."""
    n = inputs.n_tokens
    return {
        "model": model,
        "object": "list",
        "usage": {"prompt_tokens": n, "total_tokens": n},
        **content,
        **render_warnings(warnings),
    }


def _render_row(row: FloatArray, is_base64: bool) -> Any:
    if is_base64:
        return base64.b64encode(row.astype("<f4").tobytes()).decode()
    # One row at a time, so that other threads run in between.
    return orjson.Fragment(orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY))


def _truncated(i: int, inputs: Inputs) -> dict[str, bool]:
    return {"truncated": True} if i in inputs.truncated else {}
