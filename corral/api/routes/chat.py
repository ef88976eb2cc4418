"""`POST /v1/chat/completions` and what goes with it: validate, prepare, run, render."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Depends, Request, Response

from corral.api.body import JsonResponse
from corral.api.openapi import EVENTS, answers, body_of
from corral.api.prepare_chat import prepare_chat, render_chat, tokenize_chat
from corral.api.render.chat import ChatRenderer
from corral.api.respond import respond
from corral.api.schema.answer import CHAT, INPUT_TOKENS, PROMPT
from corral.api.schema.chat import ChatRequest
from corral.api.schema.parse import parse_request
from corral.api.service import Service, Vocab, require_generation, service_of
from corral.api.system_prompt import prepare_system_prompt
from corral.core.media_item import MediaKind
from corral.media.collect import PlainCollector, mark_messages
from corral.media.intake import RequestMedia

router = APIRouter()

_GENERATES = [Depends(require_generation)]
_ANSWERS = answers(CHAT, 501, 507, also=[EVENTS])
_BODY = body_of(ChatRequest)


@router.post("/v1/chat/completions", openapi_extra=_BODY, responses=_ANSWERS, dependencies=_GENERATES)
@router.post("/chat/completions", openapi_extra=_BODY, responses=_ANSWERS, dependencies=_GENERATES)
async def chat(request: Request) -> Response:
    """Answer a conversation."""
    service = service_of(request)
    body, warnings = await service.take(ChatRequest, request)
    body, media, unseen = await _see(service, request, body)
    prepared = await service.run_in_prompt_pool(
        prepare_chat,
        body,
        service.vocab_for(media),
        service.limits,
        service.defaults,
        service.chat,
        service.system_prompt,
    )
    completion = await service.apply_server_changes(request, body, prepared.completion.with_media(media))
    renderer = ChatRenderer(service, body, prepared, [*warnings, *unseen])
    return await respond(request, service, completion, renderer, body.stream)


@router.post("/apply-template", openapi_extra=_BODY, responses=answers(PROMPT, 501))
async def apply_template(request: Request) -> Response:
    """The prompt that a conversation would become."""
    service = service_of(request)
    body, _ = parse_request(ChatRequest, await service.read(request))
    collector = PlainCollector(sees=MediaKind.IMAGE in service.info.media)
    body = body.model_copy(update={"messages": mark_messages(body.messages, collector)})
    _, _, prompt = await service.run_in_prompt_pool(render_chat, body, service.chat)
    return JsonResponse({"prompt": prompt.text})


@router.post(
    "/v1/chat/completions/input_tokens", openapi_extra=_BODY, responses=answers(INPUT_TOKENS, 501, 507)
)
@router.post("/chat/completions/input_tokens", openapi_extra=_BODY, responses=answers(INPUT_TOKENS, 501, 507))
async def input_tokens(request: Request) -> Response:
    """How many tokens a conversation would take."""
    service = service_of(request)
    body, _ = parse_request(ChatRequest, await service.read(request))
    body, media, _ = await _see(service, request, body)
    n = await service.run_in_text_pool(_count_tokens, body, service, service.vocab_for(media))
    return JsonResponse({"object": "response.input_tokens", "input_tokens": n})


async def _see(
    service: Service, request: Request, body: ChatRequest
) -> tuple[ChatRequest, RequestMedia | None, list[str]]:
    """The request with marks where its images and sounds were, what these have become, and warnings."""
    messages, media, warnings = await service.extract_media(request, partial(mark_messages, body.messages))
    return body.model_copy(update={"messages": messages}), media, warnings


def _count_tokens(body: ChatRequest, service: Service, vocab: Vocab) -> int:
    _, _, prompt = render_chat(body, service.chat)
    system, _ = prepare_system_prompt(body.system_prompt, vocab, service.info.n_ctx, service.system_prompt)
    own = tokenize_chat(prompt.text, vocab, service.chat.guard, system.is_empty)
    return len(system.tokens) + len(own)
