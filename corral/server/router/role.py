"""Which kind of model a route needs, so that a request without a name finds the only one that fits."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from functools import lru_cache

from corral.core.catalog import CatalogModel
from corral.core.errors import CorralError, InvalidRequest
from corral.core.pooling import Pooling
from corral.core.result import ModelInfo
from corral.gguf.preflight import read_header
from corral.server.router.model import ServedModel

_RANK = 4  # llama.cpp's number of this pooling


class Role(enum.Enum):
    GENERATE = "generate"
    EMBED = "embed"
    RANK = "rank"
    ANY = "any"


_PATHS = {
    Role.EMBED: ("/v1/embeddings", "/embedding", "/embeddings", "/embed", "/api/embed", "/api/embeddings"),
    Role.RANK: (
        *("/rerank", "/reranking", "/v1/rerank", "/v1/reranking"),
        *("/classify", "/v1/classify"),
    ),
    Role.GENERATE: (
        *("/v1/chat/completions", "/chat/completions", "/v1/completions", "/completion", "/completions"),
        *("/infill", "/apply-template", "/v1/chat/completions/input_tokens"),
        *("/chat/completions/input_tokens", "/v1/responses", "/v1/responses/input_tokens"),
        *("/responses", "/responses/input_tokens"),
        *("/v1/responses/compact", "/v1/audio/transcriptions", "/audio/transcriptions"),
        *("/v1/chat/completions/control", "/chat/completions/control", "/completion/control"),
        *("/v1/messages", "/v1/messages/count_tokens", "/api/chat", "/api/generate"),
        "/v1/receipts/replay",
    ),
    Role.ANY: ("/tokenize", "/detokenize", "/api/show", "/api/pull"),
}
_BY_PATH = {path: role for role, paths in _PATHS.items() for path in paths}
# What belongs to one model but is not named in a body; the names after it are parts of a path.
_BY_QUERY = (
    "/slots",
    "/v1/slots",
    "/sessions",
    "/lora-adapters",
    "/monitor/events",
    "/monitor/requests",
    "/props",
    "/tokenizer_info",
)


def role_of(method: str, path: str) -> Role | None:
    """Return what the model of a request must be able to do; None: the request is for no model."""
    if path in _BY_PATH:
        return _BY_PATH[path] if method == "POST" else None
    if any(path == each or path.startswith(f"{each}/") for each in _BY_QUERY):
        return Role.ANY
    return None


def has_body(path: str) -> bool:
    """Whether a request names its model in its body."""
    return path in _BY_PATH


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
    return _loaded_role(model.info) if model.info is not None else _file_role(model.entry)


def _loaded_role(info: ModelInfo) -> Role:
    if info.can_generate:
        return Role.GENERATE
    return Role.RANK if info.encoder.pooling is Pooling.RANK else Role.EMBED


def _file_role(entry: CatalogModel) -> Role:
    engine = entry.settings.engine
    if engine.reranking or engine.pooling == Pooling.RANK.value:
        return Role.RANK
    if engine.embedding:
        return Role.EMBED
    return _header_role(engine.model) if engine.model else Role.GENERATE


@lru_cache(1024)
def _header_role(path: str) -> Role:
    try:
        header = read_header(path)
    except (CorralError, OSError):
        return Role.GENERATE
    prefix = header.architecture
    pooling = header.metadata.get(f"{prefix}.pooling_type", 0)
    is_causal = header.metadata.get(f"{prefix}.attention.causal", True)
    if pooling == _RANK:
        return Role.RANK
    return Role.GENERATE if is_causal and prefix != "t5encoder" else Role.EMBED
