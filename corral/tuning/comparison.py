"""Decide whether a model keeps its quality in another encoding, by measuring both against a reference.

The reference is the original's weights decoded to floats. The kernels of each encoding round differently,
so even two files with equal weights differ; what matters is that the new encoding is not farther from the
reference than the original. The reference is written to the cache and removed afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec

from corral.gguf.ggml_type import GGML_TYPES
from corral.gguf.model_file import main_type
from corral.tuning.divergence import Divergence, measure_divergences
from corral.tuning.encoding import Report
from corral.tuning.profile import content_hash, transcoded_path
from corral.tuning.transcode import transcode

MAX_RATIO = 1.15  # maximum ratio of the mean KL of B to that of A, both from the reference
MAX_ERRORS = 2.0  # standard errors by which B may agree less often with the reference than A
MAX_MEAN_KL = 0.005  # of B from A
NO_KL = 1e-4  # up to here B counts as equal to the reference, even if A is the reference itself
_EXACT = ("f32", "f16")
_WIDER = {"bf16": "F32"}  # types with more range than F16; all others fit into F16


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """B compared with A. `reference`: the encoding of the reference, from which `a` and `b` are measured."""

    reference: str
    a: Divergence
    b: Divergence
    b_from_a: Divergence


def keeps_quality(found: Comparison) -> bool:
    """Whether B may replace A without a request by the user."""
    a, b = found.a, found.b
    error = max(a.top1_error, b.top1_error)
    return (
        b.mean_kl <= max(MAX_RATIO * a.mean_kl, NO_KL)
        and b.top1 >= a.top1 - MAX_ERRORS * error
        and found.b_from_a.mean_kl < MAX_MEAN_KL
    )


def compare_models(a: str, b: str, text: str, report: Report, n_threads: int = 0) -> Comparison:
    """Compare two files with the same vocabulary; 0 threads: one per physical core."""
    kind = GGML_TYPES[main_type(a)].name
    encoding = _reference_encoding(kind)
    comparing = partial(report, "comparing")
    if not encoding:
        a_from_a, b_from_a = measure_divergences([a, b], [(0, 0), (0, 1)], text, comparing, n_threads)
        return Comparison(reference=kind.upper(), a=a_from_a, b=b_from_a, b_from_a=b_from_a)
    with _made(a, encoding, partial(report, f"decoding to {encoding}"), n_threads) as reference:
        pairs = [(0, 1), (0, 2), (1, 2)]
        from_a, from_b, b_from_a = measure_divergences([reference, a, b], pairs, text, comparing, n_threads)
    return Comparison(reference=encoding, a=from_a, b=from_b, b_from_a=b_from_a)


def _reference_encoding(kind: str) -> str:
    """Return what weights of this type are decoded to; empty if they are floats already."""
    return "" if kind in _EXACT else _WIDER.get(kind, "F16")


@contextlib.contextmanager
def _made(model: str, encoding: str, on_progress: Callable[[float], None], n_threads: int) -> Iterator[str]:
    path: Path = transcoded_path(content_hash(model), encoding)
    was_there = path.exists()
    try:
        transcode(model, path, encoding, on_progress, n_threads)
        yield str(path)
    finally:
        if not was_there:
            path.unlink(missing_ok=True)
