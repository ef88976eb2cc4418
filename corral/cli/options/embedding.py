"""Options: embeddings."""

from __future__ import annotations

from corral.cli.options.option import Option
from corral.core.pooling import Pooling

OPTIONS = (
    Option(
        ("--pooling",),
        "pooling type of embeddings (default: the model's, else mean)",
        "|".join(pooling.value for pooling in Pooling),
        choices=tuple(pooling.value for pooling in Pooling),
    ),
    Option(
        ("--attention",),
        "attention type of embeddings (default: the model's)",
        choices=("causal", "non-causal"),
    ),
    Option(
        ("--embd-normalize",),
        "norm to divide embeddings by, unless a request sets it; -1: none, 0: max absolute, scaled to "
        "32760, 1: taxicab, 2: euclidean, >2: p-norm",
        limits=(-1, 1024),
    ),
)
