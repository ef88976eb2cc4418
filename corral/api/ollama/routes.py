"""Ollama's routes: parse, prepare and run as a chat or a completion, render."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Scope

from corral import __version__
from corral.api import group
from corral.api.body import JsonResponse
from corral.api.dialect import Dialect, Ready, run_dialect
from corral.api.embed import embed, prepare_embedding, require_embeddings
from corral.api.embed import respond as respond_vectors
from corral.api.error_shape import LLAMA_ERRORS
from corral.api.ollama import model_list, schema
from corral.api.ollama.error import OLLAMA_ERRORS
from corral.api.ollama.keep_alive import apply_keep_alive, explain_keep_alive, parse_keep_alive
from corral.api.ollama.option import explain_options
from corral.api.ollama.parse import ParsedOllama, parse_chat, parse_generate
from corral.api.ollama.render import LINES, MEDIA_TYPE, OllamaRenderer
from corral.api.openapi import answers
from corral.api.policy import Follow, ModelUse, NamedIn, Policy, Role, Unloaded, for_model, for_server
from corral.api.render.embedding import render_data, shape
from corral.api.render.warning import render_warnings
from corral.api.router import Operation, Router
from corral.api.shared.timestamp import timestamp
from corral.api.sse import EventStream
from corral.chat.message import parse_tools
from corral.core.errors import InvalidRequest
from corral.core.key_role import Permission
from corral.core.settings import ServerSettings
from corral.generate.call import Call
from corral.generate.caller import caller_in
from corral.generate.prepare import PreparedCompletion, prepare_completion
from corral.generate.prepare_chat import PreparedChat, prepare_chat
from corral.generate.prepare_embedding import prepare_inputs
from corral.generate.prepare_infill import prepare_infill, require_marks
from corral.generate.services import ServerServices, Services
from corral.schema.chat import ChatRequest
from corral.schema.completion import CompletionRequest, GenerationFields
from corral.schema.infill import InfillRequest

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


def _is_head(scope: Scope) -> bool:
    """Whether a request for `/` is that of ollama's clients; other methods stay a 404."""
    return bool(scope["method"] == "HEAD")


def _has_no_page(server: ServerSettings) -> bool:
    return not server.ui


router = Router()


@router.head(
    "/",
    operation=None,
    policy=for_server(Permission.ANY, LLAMA_ERRORS),
    fits=_is_head,
    only_if=_has_no_page,
)
async def running(_request: Request, _services: ServerServices) -> Response:
    """Whether there is a server."""
    return PlainTextResponse("Ollama is running")


@router.post(
    "/api/chat",
    operation=Operation("ollamaChat", "Answer a conversation (ollama)", group.OLLAMA),
    policy=_GENERATES,
    body=schema.OllamaChatRequest,
    responses=answers(schema.CHAT, 404, 501, 507, also=[MEDIA_TYPE]),
)
async def chat(call: Call[schema.OllamaChatRequest]) -> Response:
    """Answer a conversation, in ollama's shape."""
    call = _remarked(call)
    if call.body.messages == []:
        await _parse_chat(call)
        parse_tools(call.body.tools, None, parallel=True)
        return await _load(call, {"message": {"role": "assistant", "content": ""}})
    return await _answer(call, _CHAT)


@router.post(
    "/api/generate",
    operation=Operation("ollamaGenerate", "Answer a prompt (ollama)", group.OLLAMA),
    policy=_GENERATES,
    body=schema.OllamaGenerateRequest,
    responses=answers(schema.GENERATE, 404, 501, 507, also=[MEDIA_TYPE]),
)
async def generate(call: Call[schema.OllamaGenerateRequest]) -> Response:
    """Answer a prompt, in ollama's shape."""
    call = _remarked(call)
    if not call.body.prompt and not call.body.suffix and not call.body.images:
        await _parse_generate(call)
        return await _load(call, {"response": ""})
    return await _answer(call, _GENERATE)


@router.post(
    "/api/embed",
    operation=Operation("ollamaEmbed", "Create embeddings (ollama)", group.OLLAMA),
    policy=_EMBEDS,
    body=schema.OllamaEmbedRequest,
    responses=answers(schema.EMBED, 404, 501, 507),
)
async def embed_inputs(call: Call[schema.OllamaEmbedRequest]) -> Response:
    """Vectors of texts, in ollama's shape."""
    body = call.body
    return await _embed(_remarked(call), body.input, "input", body.truncate, body.dimensions, is_one=False)


@router.post(
    "/api/embeddings",
    operation=Operation("ollamaEmbeddings", "Create an embedding (older ollama)", group.OLLAMA),
    policy=_EMBEDS,
    body=schema.OllamaEmbeddingsRequest,
    responses=answers(schema.EMBEDDING, 404, 501, 507),
)
async def embed_prompt(call: Call[schema.OllamaEmbeddingsRequest]) -> Response:
    """The vector of a text, in ollama's older shape."""
    return await _embed(_remarked(call), call.body.prompt, "prompt", True, None, is_one=True)


@router.get(
    "/api/tags",
    operation=Operation("ollamaTags", "List the models (ollama)", group.OLLAMA),
    policy=for_server(Permission.ANY, OLLAMA_ERRORS),
    responses=answers(schema.MODELS),
)
async def tags(request: Request, services: ServerServices) -> Response:
    """All models, in ollama's shape."""
    visible = services.models.visible(caller_in(request.scope))
    return JsonResponse({"models": [await model_list.render_listed(each, services) for each in visible]})


@router.get(
    "/api/ps",
    operation=Operation("ollamaProcesses", "List the models in memory (ollama)", group.OLLAMA),
    policy=for_server(Permission.ANY, OLLAMA_ERRORS),
    responses=answers(schema.MODELS),
)
async def processes(request: Request, services: ServerServices) -> Response:
    """The models in memory, in ollama's shape."""
    visible = services.models.visible(caller_in(request.scope))
    found = [each.services for each in visible if each.services is not None and each.is_in_memory]
    return JsonResponse({"models": [await model_list.render_process(each) for each in found]})


@router.get(
    "/api/version",
    operation=Operation("ollamaVersion", "Get the version (ollama)", group.OLLAMA),
    policy=for_server(Permission.ANY, OLLAMA_ERRORS),
    responses=answers(schema.VERSION),
)
async def version(_request: Request, _services: ServerServices) -> Response:
    """The version of ollama whose API this is, and the server's own."""
    return JsonResponse({"version": _VERSION, "corral_version": __version__})


@router.post(
    "/api/show",
    operation=Operation("ollamaShow", "Describe the model (ollama)", group.OLLAMA),
    policy=for_model(Permission.ANY, OLLAMA_ERRORS, replace(_MODEL, unloaded=Unloaded.ANSWER, wakes=False)),
    body=schema.OllamaShowRequest,
    responses=answers(schema.SHOW, 404),
)
async def show(call: Call[schema.OllamaShowRequest]) -> Response:
    """What is known of the model, in ollama's shape; of one that is not loaded, what its file says."""
    services: ServerServices = call.services  # compat: /api/chat: one model has any name
    if not isinstance(services, Services):
        found = services.models.find(call.caller, call.body.model or call.body.name)
        return JsonResponse(await asyncio.to_thread(model_list.render_file, found))
    fim = services.model.vocab.fim
    can_infill = None not in (fim.pre, fim.suf, fim.mid)
    digest = await services.file_digest.read(services.model.path)
    return JsonResponse(model_list.render_show(services.model, services.started_at, digest, can_infill))


@router.post(
    "/api/pull",
    operation=Operation("ollamaPull", "Pull the model that is there (ollama)", group.OLLAMA),
    policy=for_model(Permission.ANY, OLLAMA_ERRORS, _MODEL),
    body=schema.OllamaPullRequest,
    responses=answers(schema.STATUS, 404, also=[MEDIA_TYPE]),
)
async def pull(call: Call[schema.OllamaPullRequest]) -> Response:
    """Success: the model that answers to any name is loaded."""
    return _respond_once({"status": "success"}, call.body.stream)


def _remarked(call: Call[FieldsT]) -> Call[FieldsT]:
    """Return the call with a warning about `keep_alive`, if it is ignored."""
    body = call.body
    return msgspec.structs.replace(
        call, body=body.with_remarks_of(body, explain_keep_alive(body.keep_alive, call.services))
    )


async def _load(call: Call[AnswerT], content: dict[str, Any]) -> Response:
    """compat: /api/chat: without a question the model is loaded, or unloaded."""
    body, services = call.body, call.services
    is_unload = parse_keep_alive(body.keep_alive) == 0
    if not is_unload:
        await services.engine.load()
    apply_keep_alive(body.keep_alive, services)
    answer = {
        "model": body.model or services.model.name,
        "created_at": timestamp(time.time()),
        **content,
        "done": True,
        "done_reason": "unload" if is_unload else "load",
        **render_warnings(body.warnings),
    }
    return _respond_once(answer, body.stream)


async def _answer(call: Call[AnswerT], dialect: Dialect[AnswerT, ParsedOllama]) -> Response:
    response = await run_dialect(call, dialect)
    apply_keep_alive(call.body.keep_alive, call.services)
    return response


async def _parse_chat(call: Call[schema.OllamaChatRequest]) -> ParsedOllama:
    services = call.services
    return await services.pools.run_prompt(call.client, parse_chat, call.body, services.model.info.n_ctx)


async def _parse_generate(call: Call[schema.OllamaGenerateRequest]) -> ParsedOllama:
    services = call.services
    return await services.pools.run_prompt(call.client, parse_generate, call.body, services.model.info.n_ctx)


async def _prepare(is_chat: bool, call: Call[AnswerT], parsed: ParsedOllama) -> Ready:
    body, context = call.body, call.services.model.render_context
    n_top = (body.top_logprobs or 0) if body.logprobs else None
    prepared, chat = await _prepare_tasks(call, parsed.request)
    return prepared, OllamaRenderer(context, body.model, prepared, chat, is_chat, n_top)


async def _prepare_tasks(
    call: Call[AnswerT], asked: GenerationFields
) -> tuple[PreparedCompletion, PreparedChat | None]:
    if isinstance(asked, ChatRequest):
        chat = await prepare_chat(call, asked)
        return chat.completion, chat
    if isinstance(asked, InfillRequest):
        require_marks(call.services.model.vocab.fim)
        return await prepare_infill(call, asked), None
    assert isinstance(asked, CompletionRequest)
    return await prepare_completion(call, asked), None


_CHAT = Dialect(_parse_chat, partial(_prepare, True))
_GENERATE = Dialect(_parse_generate, partial(_prepare, False))


async def _embed(
    call: Call[schema.OllamaEmbedRequest] | Call[schema.OllamaEmbeddingsRequest],
    content: Any,
    field: str,
    truncate: bool,
    dimensions: int | None,
    is_one: bool,
) -> Response:
    services, body, started_ns = call.services, call.body, time.perf_counter_ns()
    encoder = services.model.info.encoder
    require_embeddings(encoder, True)
    if dimensions is not None and dimensions > encoder.n_embd:
        raise InvalidRequest(f"the model's vectors have {encoder.n_embd} numbers", field="dimensions")
    prepared = await prepare_embedding(call, truncate, prepare_inputs, content, field)
    vectors = await embed(call, prepared)
    apply_keep_alive(body.keep_alive, services)

    def render() -> Any:
        data = render_data(shape(vectors, dimensions, _EUCLIDEAN), prepared.inputs, is_base64=False)
        rows = [each["embedding"] for each in data]
        options = explain_options(body.options, services.model.info.n_ctx)
        warnings = render_warnings([*body.warnings, *options])
        if is_one:
            return {"embedding": rows[0], **warnings}
        count = {
            "total_duration": time.perf_counter_ns() - started_ns,
            "load_duration": 0,
            "prompt_eval_count": prepared.inputs.n_tokens,
        }
        return {"model": body.model or services.model.name, "embeddings": rows, **count, **warnings}

    return await respond_vectors(call, vectors, render)


def _respond_once(answer: dict[str, Any], is_stream: bool) -> Response:
    """Answer with an object, which is the only line of a stream."""

    async def lines() -> AsyncGenerator[dict[str, Any]]:
        yield answer

    return EventStream(lines(), format=LINES) if is_stream else JsonResponse(answer)
