"""How the vectors of an input's tokens become one."""

from __future__ import annotations

import enum


class Pooling(str, enum.Enum):
    """What becomes of the vectors that a model has for every token of an input."""

    NONE = "none"  # all of them
    MEAN = "mean"
    CLS = "cls"  # the first
    LAST = "last"
    RANK = "rank"  # the scores of a classification head
