"""What a model of the catalog is for, by its options or the header of its file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache

from corral.api.policy import Role
from corral.core.catalog import CatalogModel
from corral.core.errors import CorralError
from corral.core.pooling import Pooling
from corral.generate.model_kind import Kind
from corral.gguf.preflight import read_header

_RANK = 4  # llama.cpp's number of this pooling
_ENCODERS = ("t5encoder", "gemma-embedding")  # whose files need not say so
_POOLED = "gemma-embedding"  # also if its file does not say how


@dataclass(frozen=True, slots=True)
class Look:
    """What options or a file's header say."""

    role: Role
    kind: Kind


_CHAT = Look(Role.GENERATE, Kind.CHAT)
_EMBEDS = Look(Role.EMBED, Kind.EMBEDDING)
_ENCODES = Look(Role.EMBED, Kind.ENCODER)
_RANKS = Look(Role.RANK, Kind.RERANKER)


def look_at_entry(entry: CatalogModel) -> Look:
    """Return what a model of the catalog is for, without loading it; may read its file."""
    engine = entry.settings.engine
    if engine.reranking or engine.pooling == Pooling.RANK.value:
        return _RANKS
    if engine.embedding:
        return _EMBEDS
    try:
        return _look_into(engine.model, os.stat(engine.model).st_mtime_ns)
    except OSError:
        return _CHAT  # not downloaded yet


@lru_cache(1024)
def _look_into(path: str, _changed_at: int) -> Look:
    try:
        header = read_header(path)
    except CorralError:
        return _CHAT
    prefix = header.architecture
    pooling = header.metadata.get(f"{prefix}.pooling_type", 0)
    if pooling == _RANK:
        return _RANKS
    if prefix in _ENCODERS or not header.metadata.get(f"{prefix}.attention.causal", True):
        return _EMBEDS if pooling or prefix == _POOLED else _ENCODES
    # A decoder that was trained for embeddings could generate, but nobody wants to read it.
    return Look(Role.GENERATE, Kind.EMBEDDING) if pooling else _CHAT
