"""What a model is for, so that clients do not offer an embedding model for chat."""

from __future__ import annotations

import enum

from corral.core.pooling import Pooling
from corral.core.result import ModelInfo


class Kind(str, enum.Enum):
    CHAT = "chat"
    EMBEDDING = "embedding"
    RERANKER = "reranker"

    @property
    def capability(self) -> str:
        """Its word in lists that know only two. compat: /v1/models, /api/tags."""
        return "completion" if self is Kind.CHAT else "embedding"


def kind_of_info(info: ModelInfo) -> Kind:
    """Return the kind of a loaded model."""
    if info.can_generate:
        return Kind.CHAT
    return Kind.RERANKER if info.encoder.pooling is Pooling.RANK else Kind.EMBEDDING
