"""Which kind of model a route needs, so that a request without a name finds the only one that fits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache

from corral.api.policy import Role
from corral.core.errors import CorralError, InvalidRequest
from corral.core.media_item import MediaKind
from corral.core.model_title import title_of
from corral.core.pooling import Pooling
from corral.core.result import ModelInfo
from corral.gguf.preflight import read_header
from corral.models.header import look_at_entry
from corral.models.model import ServedModel


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
    return _loaded_role(model.info) if model.info is not None else look_at_entry(model.entry).role


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
        look_at_entry(model.entry)
        media_of_model(model)
        title_of_model(model)


def _loaded_role(info: ModelInfo) -> Role:
    if info.can_generate:
        return Role.GENERATE
    return Role.RANK if info.encoder.pooling is Pooling.RANK else Role.EMBED


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
