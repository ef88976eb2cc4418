"""How the vectors of an input's tokens are reduced to one."""

from __future__ import annotations

import enum


class Pooling(str, enum.Enum):
    """Pooling of the vectors of an input's tokens."""

    NONE = "none"  # one vector per token
    MEAN = "mean"
    CLS = "cls"  # the first
    LAST = "last"
    RANK = "rank"  # scores of a classification head
