"""`POST /v1/chat/completions` and what goes with it: validate, prepare, run, render."""

from __future__ import annotations

from dataclasses import replace

from starlette.responses import Response

from corral.api import group
from corral.api.answer import CHAT, INPUT_TOKENS, PROMPT
from corral.api.body import JsonResponse
from corral.api.count_tokens import count_tokens
from corral.api.dialect import AsSent, Dialect, Ready, as_sent, run_dialect
from corral.api.error_shape import LLAMA_ERRORS
from corral.api.openai.render_chat import ChatRenderer
from corral.api.openapi import EVENTS, answers
from corral.api.piece_response import respond_json
from corral.api.policy import Follow, ModelUse, NamedIn, Policy, Role, Unloaded, for_model
from corral.api.router import Operation, Router
from corral.core.key_role import Permission
from corral.core.media_item import MediaKind
from corral.generate.call import Call
from corral.generate.model import ModelFacts
from corral.generate.prepare_chat import prepare_chat, render_chat
from corral.media.collect import PlainCollector, mark_messages
from corral.schema.chat import ChatRequest

_MODEL = ModelUse(
    Role.GENERATE,
    NamedIn.BODY,
    Unloaded.LOAD,
    wakes=True,
    progress={"object": "chat.completion.chunk", "choices": []},
)

router = Router()


@router.post(
    "/v1/chat/completions",
    "/chat/completions",
    operation=Operation("createChatCompletion", "Create a chat completion (OpenAI)", group.CHAT),
    policy=Policy(
        permission=Permission.GENERATE,
        errors=LLAMA_ERRORS,
        model=_MODEL,
        follow=Follow.CONVERSATION,
        live=None,
        settles=False,
        is_batched=True,
    ),
    body=ChatRequest,
    responses=answers(CHAT, 501, 507, also=[EVENTS]),
)
async def chat(call: Call[ChatRequest]) -> Response:
    """Answer a conversation."""
    return await run_dialect(call, _CHAT)


async def _prepare(call: Call[ChatRequest], _: AsSent) -> Ready:
    prepared = await prepare_chat(call, call.body)
    return prepared.completion, ChatRenderer(call.services.model.render_context, call.body, prepared)


_CHAT = Dialect(as_sent, _prepare)


@router.post(
    "/apply-template",
    operation=Operation("applyTemplate", "Render a chat as a prompt", group.CHAT),
    policy=for_model(Permission.USE, LLAMA_ERRORS, replace(_MODEL, wakes=False, progress=None)),
    body=ChatRequest,
    responses=answers(PROMPT, 501),
)
async def apply_template(call: Call[ChatRequest]) -> Response:
    """The prompt that a conversation would become."""
    pools = call.services.pools
    text = await pools.run_chat(call.client, _apply_template, call.body, call.services.model)
    call.services.wake_engine()
    return await respond_json(pools, call.record, lambda: {"prompt": text}, len(text))


def _apply_template(body: ChatRequest, model: ModelFacts) -> str:
    collector = PlainCollector(sees=MediaKind.IMAGE in model.info.media)
    marked = body.model_copy(update={"messages": mark_messages(body.messages, collector)})
    _, _, prompt = render_chat(marked, model.chat)
    return prompt.text


@router.post(
    "/v1/chat/completions/input_tokens",
    "/chat/completions/input_tokens",
    operation=Operation("countChatTokens", "Count the tokens of a chat", group.CHAT),
    policy=for_model(Permission.USE, LLAMA_ERRORS, replace(_MODEL, progress=None)),
    body=ChatRequest,
    responses=answers(INPUT_TOKENS, 501, 507),
)
async def input_tokens(call: Call[ChatRequest]) -> Response:
    """How many tokens a conversation would take."""
    n = await count_tokens(call, call.body)
    return JsonResponse({"object": "response.input_tokens", "input_tokens": n})
