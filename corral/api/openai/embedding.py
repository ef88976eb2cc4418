"""`POST /embedding` and `POST /v1/embeddings`: vectors of texts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from starlette.responses import Response

from corral.api import group
from corral.api.answer import EMBEDDING, EMBEDDINGS, VECTORS
from corral.api.embed import (
    BASE64_CHARS,
    FLOAT_CHARS,
    embed,
    prepare_embedding,
    require_embeddings,
    respond,
)
from corral.api.error_shape import LLAMA_ERRORS
from corral.api.openapi import answers
from corral.api.policy import Follow, ModelUse, NamedIn, Policy, Role, Unloaded
from corral.api.render.embedding import render_data, render_list, render_rows, render_vectors, shape
from corral.api.router import Operation, Router
from corral.core.errors import InvalidRequest
from corral.core.key_role import Permission
from corral.core.pooling import Pooling
from corral.core.result import EncoderInfo
from corral.generate.call import Call
from corral.generate.prepare_embedding import prepare_inputs
from corral.media.collect import mark_prompt
from corral.schema.embedding import EmbeddingRequest, EmbedRequest

_POLICY = Policy(
    permission=Permission.GENERATE,
    errors=LLAMA_ERRORS,
    model=ModelUse(Role.EMBED, NamedIn.BODY, Unloaded.LOAD, wakes=True, progress=None),
    follow=Follow.NEVER,
    live=None,
    settles=False,
    is_batched=False,
)

router = Router()

_UNCHANGED, _EUCLIDEAN = -1, 2


@router.post(
    "/embedding",
    "/embeddings",
    operation=Operation("createEmbeddings", "Create embeddings", group.EMBEDDINGS),
    policy=_POLICY,
    body=EmbeddingRequest,
    needs=lambda services: services.model.info.encoder,
    responses=answers(EMBEDDING, 501, 507),
)
async def embedding(call: Call[EmbeddingRequest]) -> Response:
    """Vectors of texts; of all their tokens, if there is no pooling."""
    return await _answer(call, is_openai=False)


@router.post(
    "/v1/embeddings",
    operation=Operation("createOpenaiEmbeddings", "Create embeddings (OpenAI)", group.EMBEDDINGS),
    policy=replace(_POLICY, is_batched=True),
    body=EmbeddingRequest,
    needs=lambda services: services.model.info.encoder,
    responses=answers(EMBEDDINGS, 501, 507),
)
async def openai_embeddings(call: Call[EmbeddingRequest]) -> Response:
    """Vectors of texts, in OpenAI's shape."""
    return await _answer(call, is_openai=True)


@router.post(
    "/embed",
    operation=Operation("embedTexts", "Create embeddings (Text Embeddings Inference)", group.EMBEDDINGS),
    policy=_POLICY,
    body=EmbedRequest,
    needs=lambda services: require_embeddings(services.model.info.encoder, is_openai=True),
    responses=answers(VECTORS, 501, 507),
)
async def embed_inputs(call: Call[EmbedRequest]) -> Response:
    """Vectors of texts, in the shape of Text Embeddings Inference: a list for each input, nothing else."""
    body, encoder = call.body, call.services.model.info.encoder
    _check_dimensions(body.dimensions, encoder)
    if body.prompt_name is not None:
        raise InvalidRequest("the model has no prompts; write it before the text", field="prompt_name")
    if body.truncate and body.truncation_direction.lower() != "right":
        raise InvalidRequest("inputs are truncated on the right only", field="truncation_direction")
    prepared = await prepare_embedding(call, body.truncate, prepare_inputs, body.inputs, "inputs")
    vectors = await embed(call, prepared)
    norm = _EUCLIDEAN if body.normalize else _UNCHANGED
    return await respond(
        call,
        vectors,
        lambda: render_vectors(shape(vectors, body.dimensions, norm)),
    )


async def _answer(call: Call[EmbeddingRequest], is_openai: bool) -> Response:
    services, body = call.services, call.body
    encoder = services.model.info.encoder
    field = "content" if body.input is None and body.content is not None else "input"
    # compat: /v1/embeddings: `content` is not a field of OpenAI's, and answered in the native format.
    is_openai = is_openai and field == "input"
    _check(body, encoder, is_openai)
    mark = partial(mark_prompt, getattr(body, field), body.image_data, field, bool(services.model.info.media))
    content, media, _ = await services.prepare.load_media(call, mark)
    is_base64 = body.encoding_format == "base64"
    n_chars = BASE64_CHARS if is_base64 else FLOAT_CHARS
    prepared = await prepare_embedding(
        *(call, body.truncate, prepare_inputs, content, field), media=media, n_chars=n_chars
    )
    vectors = await embed(call, prepared)
    norm = _norm(body, encoder, services.settings.server.embd_normalize)

    def render() -> Any:
        rows = shape(vectors, body.dimensions, norm)
        if not is_openai:
            return render_rows(rows, prepared.inputs, is_base64)
        data = render_data(rows, prepared.inputs, is_base64)
        return render_list(body.model or services.model.name, prepared.inputs, body.warnings, data=data)

    return await respond(call, vectors, render)


def _check(body: EmbeddingRequest, encoder: EncoderInfo, is_openai: bool) -> None:
    require_embeddings(encoder, is_openai)
    if body.input is None and body.content is None:
        raise InvalidRequest('"input" or "content" must be provided', field="input")
    _check_dimensions(body.dimensions, encoder)


def _check_dimensions(dimensions: int | None, encoder: EncoderInfo) -> None:
    if dimensions is not None and dimensions > encoder.n_embd:
        raise InvalidRequest(f"this model's vectors have {encoder.n_embd} dimensions", field="dimensions")


def _norm(body: EmbeddingRequest, encoder: EncoderInfo, default: int) -> int:
    if encoder.pooling in (Pooling.NONE, Pooling.RANK):
        return _UNCHANGED
    return default if body.embd_normalize is None else body.embd_normalize
