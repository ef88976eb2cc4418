"""Ollama's routes: parse, prepare and run as a chat or a completion, render."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Scope

from corral import __version__
from corral.api import group
from corral.api.body import JsonResponse, parse_body
from corral.api.caller import caller_in
from corral.api.dialects.error_shape import LLAMA_ERRORS, OLLAMA_ERRORS
from corral.api.dialects.ollama import model_list, schema
from corral.api.dialects.ollama.keep_alive import (
    apply_keep_alive,
    explain_keep_alive,
    parse_keep_alive,
)
from corral.api.dialects.ollama.option import explain_options
from corral.api.dialects.ollama.parse import ParsedOllama, parse_chat, parse_generate
from corral.api.dialects.ollama.render import LINES, MEDIA_TYPE, OllamaRenderer
from corral.api.dialects.place import renaming
from corral.api.dialects.timestamp import timestamp
from corral.api.embed import embed, prepare_embedding, require_embeddings
from corral.api.embed import respond as respond_vectors
from corral.api.openapi import answers, body_of
from corral.api.policy import Follow, ModelUse, NamedIn, Policy, Role, Unloaded, for_model, for_server
from corral.api.prepare import PreparedCompletion, prepare_completion
from corral.api.prepare_chat import PreparedChat, prepare_chat
from corral.api.prepare_embedding import prepare_inputs
from corral.api.prepare_infill import prepare_infill, require_marks
from corral.api.render.embedding import render_data, shape
from corral.api.render.warning import render_warnings
from corral.api.respond import check_admission, respond
from corral.api.router import Operation, Router
from corral.api.schema.chat import ChatRequest
from corral.api.schema.completion import CompletionRequest
from corral.api.schema.infill import InfillRequest
from corral.api.sse import EventStream
from corral.api.state import AppState, state_of
from corral.chat.message import parse_tools
from corral.core.errors import InvalidRequest
from corral.core.key_role import Permission
from corral.link.lifecycle import EngineState

_EUCLIDEAN = 2
_VERSION = "0.13.4"  # of ollama: it has all that is here, and Codex takes no older one
FieldsT = TypeVar("FieldsT", bound=schema.ModelFields)
AnswerT = TypeVar("AnswerT", bound=schema.AnswerFields)


_MODEL = ModelUse(Role.ANY, NamedIn.BODY_OR_NAME, Unloaded.LOAD, wakes=True, progress=None)
_GENERATES = Policy(
    permission=Permission.GENERATE,
    errors=OLLAMA_ERRORS,
    model=replace(_MODEL, role=Role.GENERATE),
    follow=Follow.NEVER,
    live=None,
    settles=False,
    is_batched=False,
)
_EMBEDS = replace(_GENERATES, model=replace(_MODEL, role=Role.EMBED))


def _has_no_page(scope: Scope) -> bool:
    """Whether `/` is for ollama's clients; methods other than HEAD stay a 404."""
    app = scope.get("app")
    has_page = app is None or app.state.api.settings.server.ui
    return not has_page and scope["method"] == "HEAD"


router = Router()


@router.head("/", operation=None, policy=for_server(Permission.ANY, LLAMA_ERRORS), fits=_has_no_page)
async def running(_request: Request) -> Response:
    """Whether there is a server."""
    return PlainTextResponse("Ollama is running")


@router.post(
    "/api/chat",
    operation=Operation("ollamaChat", "Answer a conversation (ollama)", group.OLLAMA),
    policy=_GENERATES,
    openapi_extra=body_of(schema.OllamaChatRequest),
    responses=answers(schema.CHAT, 404, 501, 507, also=[MEDIA_TYPE]),
)
async def chat(request: Request) -> Response:
    """Answer a conversation, in ollama's shape."""
    state = state_of(request)
    body = await _read(request, schema.OllamaChatRequest)
    parsed = await state.pools.run_prompt(
        caller_in(request.scope).client, parse_chat, body, state.model.info.n_ctx
    )
    if body.messages == []:
        parse_tools(body.tools, None, parallel=True)
        return await _load(state, body, {"message": {"role": "assistant", "content": ""}})
    return await _answer(request, body, parsed, is_chat=True)


@router.post(
    "/api/generate",
    operation=Operation("ollamaGenerate", "Answer a prompt (ollama)", group.OLLAMA),
    policy=_GENERATES,
    openapi_extra=body_of(schema.OllamaGenerateRequest),
    responses=answers(schema.GENERATE, 404, 501, 507, also=[MEDIA_TYPE]),
)
async def generate(request: Request) -> Response:
    """Answer a prompt, in ollama's shape."""
    state = state_of(request)
    body = await _read(request, schema.OllamaGenerateRequest)
    parsed = await state.pools.run_prompt(
        caller_in(request.scope).client, parse_generate, body, state.model.info.n_ctx
    )
    if not body.prompt and not body.suffix and not body.images:
        return await _load(state, body, {"response": ""})
    return await _answer(request, body, parsed, is_chat=False)


@router.post(
    "/api/embed",
    operation=Operation("ollamaEmbed", "Create embeddings (ollama)", group.OLLAMA),
    policy=_EMBEDS,
    openapi_extra=body_of(schema.OllamaEmbedRequest),
    responses=answers(schema.EMBED, 404, 501, 507),
)
async def embed_inputs(request: Request) -> Response:
    """Vectors of texts, in ollama's shape."""
    body = await _parse(request, schema.OllamaEmbedRequest)
    return await _embed(request, body, body.input, "input", body.truncate, body.dimensions, is_one=False)


@router.post(
    "/api/embeddings",
    operation=Operation("ollamaEmbeddings", "Create an embedding (older ollama)", group.OLLAMA),
    policy=_EMBEDS,
    openapi_extra=body_of(schema.OllamaEmbeddingsRequest),
    responses=answers(schema.EMBEDDING, 404, 501, 507),
)
async def embed_prompt(request: Request) -> Response:
    """The vector of a text, in ollama's older shape."""
    body = await _parse(request, schema.OllamaEmbeddingsRequest)
    return await _embed(request, body, body.prompt, "prompt", True, None, is_one=True)


@router.get(
    "/api/tags",
    operation=Operation("ollamaTags", "List the models (ollama)", group.OLLAMA),
    policy=for_server(Permission.ANY, OLLAMA_ERRORS),
    responses=answers(schema.MODELS),
)
async def tags(request: Request) -> Response:
    """The loaded model, in ollama's shape."""
    state = state_of(request)
    digest = await state.file_digest.read(state.model.path)
    return JsonResponse({"models": [model_list.render_model(state.model, state.started_at, digest)]})


@router.get(
    "/api/ps",
    operation=Operation("ollamaProcesses", "List the models in memory (ollama)", group.OLLAMA),
    policy=for_server(Permission.ANY, OLLAMA_ERRORS),
    responses=answers(schema.MODELS),
)
async def processes(request: Request) -> Response:
    """The model, if it is in memory, in ollama's shape."""
    state = state_of(request)
    if state.engine.state is EngineState.SLEEPING:
        return JsonResponse({"models": []})
    digest = await state.file_digest.read(state.model.path)
    process = model_list.render_process(state.model, state.started_at, digest, state.engine.unloads_in_s)
    return JsonResponse({"models": [process]})


@router.get(
    "/api/version",
    operation=Operation("ollamaVersion", "Get the version (ollama)", group.OLLAMA),
    policy=for_server(Permission.ANY, OLLAMA_ERRORS),
    responses=answers(schema.VERSION),
)
async def version(_request: Request) -> Response:
    """The version of ollama whose API this is, and the server's own."""
    return JsonResponse({"version": _VERSION, "corral_version": __version__})


@router.post(
    "/api/show",
    operation=Operation("ollamaShow", "Describe the model (ollama)", group.OLLAMA),
    policy=for_model(Permission.ANY, OLLAMA_ERRORS, replace(_MODEL, unloaded=Unloaded.ANSWER, wakes=False)),
    openapi_extra=body_of(schema.OllamaShowRequest),
    responses=answers(schema.SHOW, 404),
)
async def show(request: Request) -> Response:
    """What is known of the model, in ollama's shape."""
    state = state_of(request)
    await parse_body(request, schema.OllamaShowRequest)  # compat: /api/chat: one model has any name
    fim = state.model.vocab.fim
    can_infill = None not in (fim.pre, fim.suf, fim.mid)
    digest = await state.file_digest.read(state.model.path)
    return JsonResponse(model_list.render_show(state.model, state.started_at, digest, can_infill))


@router.post(
    "/api/pull",
    operation=Operation("ollamaPull", "Pull the model that is there (ollama)", group.OLLAMA),
    policy=for_model(Permission.ANY, OLLAMA_ERRORS, _MODEL),
    openapi_extra=body_of(schema.OllamaPullRequest),
    responses=answers(schema.STATUS, 404, also=[MEDIA_TYPE]),
)
async def pull(request: Request) -> Response:
    """Success: the model that answers to any name is loaded."""
    body = await parse_body(request, schema.OllamaPullRequest)
    return _respond_once({"status": "success"}, body.stream)


async def _read(request: Request, model: type[AnswerT]) -> AnswerT:
    check_admission(request)
    return await _parse(request, model)


async def _parse(request: Request, model: type[FieldsT]) -> FieldsT:
    body = await parse_body(request, model)
    return body.with_remarks_of(body, explain_keep_alive(body.keep_alive, state_of(request)))


async def _load(state: AppState, body: schema.AnswerFields, content: dict[str, Any]) -> Response:
    """compat: /api/chat: without a question the model is loaded, or unloaded."""
    is_unload = parse_keep_alive(body.keep_alive) == 0
    if not is_unload:
        await state.engine.load()
    apply_keep_alive(body.keep_alive, state)
    answer = {
        "model": body.model or state.model.name,
        "created_at": timestamp(time.time()),
        **content,
        "done": True,
        "done_reason": "unload" if is_unload else "load",
        **render_warnings(body.warnings),
    }
    return _respond_once(answer, body.stream)


async def _answer(
    request: Request, body: schema.AnswerFields, parsed: ParsedOllama, is_chat: bool
) -> Response:
    state = state_of(request)
    n_top = (body.top_logprobs or 0) if body.logprobs else None
    with renaming(parsed.names):
        prepared, chat = await _prepare(request, parsed, state)
        context = state.model.render_context
        renderer = OllamaRenderer(context, body.model, prepared, chat, is_chat, n_top)
        response = await respond(request, prepared, renderer, body.stream)
    apply_keep_alive(body.keep_alive, state)
    return response


async def _prepare(
    request: Request, parsed: ParsedOllama, state: AppState
) -> tuple[PreparedCompletion, PreparedChat | None]:
    asked = parsed.request
    if isinstance(asked, ChatRequest):
        chat = await prepare_chat(request, asked, state.prepare)
        return chat.completion, chat
    if isinstance(asked, InfillRequest):
        require_marks(state.model.vocab.fim)
        return await prepare_infill(request, asked, state.prepare), None
    assert isinstance(asked, CompletionRequest)
    return await prepare_completion(request, asked, state.prepare), None


async def _embed(
    request: Request,
    body: schema.OllamaEmbedRequest | schema.OllamaEmbeddingsRequest,
    content: Any,
    field: str,
    truncate: bool,
    dimensions: int | None,
    is_one: bool,
) -> Response:
    state, started_ns = state_of(request), time.perf_counter_ns()
    encoder = state.model.info.encoder
    require_embeddings(encoder, True)
    if dimensions is not None and dimensions > encoder.n_embd:
        raise InvalidRequest(f"the model's vectors have {encoder.n_embd} numbers", field="dimensions")
    prepared = await prepare_embedding(request, state.prepare, truncate, prepare_inputs, content, field)
    vectors = await embed(request, prepared)
    apply_keep_alive(body.keep_alive, state)

    def render() -> Any:
        data = render_data(shape(vectors, dimensions, _EUCLIDEAN), prepared.inputs, is_base64=False)
        rows = [each["embedding"] for each in data]
        warnings = render_warnings([*body.warnings, *explain_options(body.options, state.model.info.n_ctx)])
        if is_one:
            return {"embedding": rows[0], **warnings}
        count = {
            "total_duration": time.perf_counter_ns() - started_ns,
            "load_duration": 0,
            "prompt_eval_count": prepared.inputs.n_tokens,
        }
        return {"model": body.model or state.model.name, "embeddings": rows, **count, **warnings}

    return await respond_vectors(state.pools, caller_in(request.scope).record, vectors, render)


def _respond_once(answer: dict[str, Any], is_stream: bool) -> Response:
    """Answer with an object, which is the only line of a stream."""

    async def lines() -> AsyncGenerator[dict[str, Any]]:
        yield answer

    return EventStream(lines(), format=LINES) if is_stream else JsonResponse(answer)
