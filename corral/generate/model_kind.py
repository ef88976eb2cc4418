"""What a model is for, so that clients do not offer an embedding model for chat."""

from __future__ import annotations

import enum

from corral.core.pooling import Pooling
from corral.core.result import ModelInfo


class Kind(str, enum.Enum):
    CHAT = "chat"
    EMBEDDING = "embedding"
    RERANKER = "reranker"
    ENCODER = "encoder"  # of tokens: nothing makes one vector of a text

    @property
    def capability(self) -> str:
        """Its word in lists that know only two. compat: /v1/models, /api/tags."""
        return "completion" if self is Kind.CHAT else "embedding"


def kind_of_info(info: ModelInfo) -> Kind:
    """Return the kind of a loaded model."""
    if info.can_generate:
        return Kind.CHAT
    kinds = {Pooling.RANK: Kind.RERANKER, Pooling.NONE: Kind.ENCODER}
    return kinds.get(info.encoder.pooling, Kind.EMBEDDING)
