"""Render models as ollama lists, shows and reports models."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from corral.api.shared.timestamp import timestamp
from corral.chat.chat_format import ChatFormat
from corral.core.errors import NotFound
from corral.core.media_item import MediaKind
from corral.core.result import ModelInfo
from corral.generate.model import ModelFacts
from corral.generate.model_directory import ListedModel
from corral.generate.model_kind import kind_of_info
from corral.generate.services import ServerServices, Services
from corral.gguf.preflight import read_header

_NOT_IN_PS = ("modified_at", "capabilities")
_FOREVER = "9999-12-31T23:59:59Z"


def render_model(model: ModelFacts, started_at: int, digest: str) -> dict[str, Any]:
    info = model.info
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": timestamp(started_at),
        "size": info.n_bytes,
        "digest": digest,
        "details": _details(info),
        "capabilities": [kind_of_info(info).capability],
    }


async def render_listed(model: ListedModel, server: ServerServices) -> dict[str, Any]:
    """Render a model for `/api/tags`, loaded or not."""
    if model.services is not None:
        facts = model.services.model
        row = render_model(facts, server.started_at, await server.file_digest.read(facts.path))
    else:
        size = os.path.getsize(model.path) if os.path.isfile(model.path) else 0
        row = {"name": model.name, "model": model.name, "size": size, "digest": "", "details": _family("")}
    kind = await asyncio.to_thread(lambda: model.kind)
    return {**row, "capabilities": [kind.capability]}


def render_file(model: ListedModel) -> dict[str, Any]:
    """Render what the file of a model says that is not loaded; reads it. Raises NotFound."""
    try:
        header = read_header(model.path)
    except OSError:
        raise NotFound(f"model '{model.name}' is not downloaded") from None
    family = header.architecture
    numbers = {key: value for key, value in header.metadata.items() if isinstance(value, int | float)}
    return {
        "modelfile": "",
        "parameters": "",
        "template": str(header.metadata.get("tokenizer.chat_template", "")),
        "details": _family(family),
        "model_info": {"general.architecture": family, **numbers},
        "capabilities": [model.kind.capability],
    }


async def render_process(services: Services) -> dict[str, Any]:
    """Render a model in memory for `/api/ps`."""
    model, started_at, unloads_in_s = services.model, services.started_at, services.engine.unloads_in_s
    digest = await services.file_digest.read(model.path)
    info = model.info
    expires_at = _FOREVER if unloads_in_s is None else timestamp(time.time() + unloads_in_s)
    listed = {k: v for k, v in render_model(model, started_at, digest).items() if k not in _NOT_IN_PS}
    return {**listed, "expires_at": expires_at, "size_vram": 0, "context_length": info.n_ctx}


def render_show(model: ModelFacts, started_at: int, digest: str, can_infill: bool) -> dict[str, Any]:
    info, chat_format = model.info, model.chat.tool_format
    listed = render_model(model, started_at, digest)
    family = listed["details"]["family"]
    return {
        "modelfile": f"FROM {model.name}\n",
        "parameters": f"num_ctx {info.n_ctx}",
        "template": chat_format.template.source,
        "details": listed["details"],
        "model_info": {
            "general.architecture": family,
            "general.parameter_count": info.n_params,
            f"{family}.context_length": info.n_ctx_train,
            f"{family}.embedding_length": info.n_embd,
        },
        "capabilities": _capabilities(info, chat_format, can_infill),
        "modified_at": listed["modified_at"],
        "digest": listed["digest"],
        "license": "",
    }


def _capabilities(info: ModelInfo, chat_format: ChatFormat, can_infill: bool) -> list[str]:
    if not info.can_generate:
        return ["embedding"]
    has = {
        "completion": True,
        "tools": True,
        "insert": can_infill,
        "vision": MediaKind.IMAGE in info.media,
        "embedding": True,
        "thinking": chat_format.reasoning_tags is not None,
    }
    return [name for name, is_there in has.items() if is_there]


def _details(info: ModelInfo) -> dict[str, Any]:
    """Return family, size and encoding, as libllama describes them."""
    words = info.description.split() or ["unknown"]
    return {
        "parent_model": "",
        "format": "gguf",
        "family": words[0],
        "families": [words[0]],
        "parameter_size": _size(info.n_params),
        "quantization_level": words[2] if len(words) > 2 else "unknown",
    }


def _family(family: str) -> dict[str, Any]:
    """Return what a file says."""
    return {"parent_model": "", "format": "gguf", "family": family, "families": [family] if family else []}


def _size(n_params: int) -> str:
    return f"{n_params / 1e9:.1f}B" if n_params >= 10**9 else f"{n_params / 1e6:.2f}M"
