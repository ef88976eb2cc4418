"""Options: embeddings."""

from __future__ import annotations

from corral.cli.options.option import Option
from corral.core.pooling import Pooling

OPTIONS = (
    Option(
        ("--pooling",),
        "how the vectors of all tokens become one (default: as the model says, else mean)",
        "|".join(pooling.value for pooling in Pooling),
        choices=tuple(pooling.value for pooling in Pooling),
    ),
    Option(
        ("--attention",),
        "whether tokens see later ones when they are embedded (default: as the model says)",
        choices=("causal", "non-causal"),
    ),
    Option(
        ("--embd-normalize",),
        "norm that vectors are divided by unless a request says so; -1: none, 0: largest number, "
        "to 32760, 1: taxicab, 2: euclidean, more: p-norm",
        limits=(-1, 1024),
    ),
)
