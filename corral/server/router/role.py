"""Which kind of model a route needs, so that a request without a name finds the only one that fits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from corral.api.model_kind import Kind
from corral.api.policy import Role
from corral.core.catalog import CatalogModel
from corral.core.errors import CorralError, InvalidRequest
from corral.core.media_item import MediaKind
from corral.core.model_title import title_of
from corral.core.pooling import Pooling
from corral.core.result import ModelInfo
from corral.gguf.preflight import read_header
from corral.server.router.model import ServedModel

_RANK = 4  # llama.cpp's number of this pooling
_ENCODERS = ("t5encoder", "gemma-embedding")  # whose files need not say so
_POOLED = "gemma-embedding"  # also if its file does not say how


def choose(role: Role, models: Sequence[ServedModel]) -> ServedModel:
    """Return the only model that can serve the role. Raises InvalidRequest if there are several."""
    if role is Role.ANY:
        fitting = list(models)
    else:
        fitting = [model for model in models if role_of_model(model) is role]
        if not fitting and role is Role.EMBED:
            fitting = [model for model in models if role_of_model(model) is Role.GENERATE]
    if len(fitting) != 1:
        raise InvalidRequest("model name is missing from the request")
    return fitting[0]


def role_of_model(model: ServedModel) -> Role:
    return _loaded_role(model.info) if model.info is not None else _look(model.entry).role


def kind_of_model(model: ServedModel) -> Kind:
    """Return what a model is for, without loading it."""
    return _look(model.entry).kind


def media_of_model(model: ServedModel) -> list[MediaKind]:
    """Return what a model takes besides text, without loading it."""
    if model.info is not None:
        return [kind for kind in MediaKind if kind in model.info.media]
    path = model.entry.settings.engine.mmproj
    try:
        return list(_media_of(path, os.stat(path).st_mtime_ns)) if path else []
    except OSError:
        return []  # not downloaded yet


def title_of_model(model: ServedModel) -> str:
    """Return what people call a model, without loading it."""
    path = model.entry.settings.engine.model
    try:
        return _title_in(path, os.stat(path).st_mtime_ns)
    except OSError:
        return model.name  # not downloaded yet


def look_at(models: Sequence[ServedModel]) -> None:
    """Read the headers of files, so that the functions above do not block; call in a thread."""
    for model in models:
        kind_of_model(model)
        media_of_model(model)
        title_of_model(model)


def _loaded_role(info: ModelInfo) -> Role:
    if info.can_generate:
        return Role.GENERATE
    return Role.RANK if info.encoder.pooling is Pooling.RANK else Role.EMBED


@dataclass(frozen=True, slots=True)
class _Look:
    """What options or a file's header say."""

    role: Role
    kind: Kind


_CHAT = _Look(Role.GENERATE, Kind.CHAT)
_EMBEDS = _Look(Role.EMBED, Kind.EMBEDDING)
_ENCODES = _Look(Role.EMBED, Kind.ENCODER)
_RANKS = _Look(Role.RANK, Kind.RERANKER)


def _look(entry: CatalogModel) -> _Look:
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
def _look_into(path: str, _changed_at: int) -> _Look:
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
    return _Look(Role.GENERATE, Kind.EMBEDDING) if pooling else _CHAT


@lru_cache(1024)
def _title_in(path: str, _changed_at: int) -> str:
    try:
        metadata = read_header(path).metadata
    except CorralError:
        return title_of(path)
    name, basename = metadata.get("general.name", ""), metadata.get("general.basename", "")
    return title_of(path, str(name), str(basename))


@lru_cache(1024)
def _media_of(path: str, _changed_at: int) -> tuple[MediaKind, ...]:
    try:
        metadata = read_header(path).metadata
    except CorralError:
        return ()
    keys = {MediaKind.IMAGE: "clip.has_vision_encoder", MediaKind.AUDIO: "clip.has_audio_encoder"}
    return tuple(kind for kind, key in keys.items() if metadata.get(key))
