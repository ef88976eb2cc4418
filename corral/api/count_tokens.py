"""Count the tokens of a chat, for the routes of all APIs that have it."""

from __future__ import annotations

from starlette.requests import Request

from corral.api.caller import caller_in
from corral.api.prepare_chat import count_chat_tokens, mark_chat
from corral.api.schema.chat import ChatRequest
from corral.api.state import state_of


async def count_tokens(request: Request, chat: ChatRequest) -> int:
    """Needs no engine, but begins to load one that sleeps: clients that count tokens are about to use
    them."""
    state = state_of(request)
    context = state.prepare
    marked, media, _ = await mark_chat(request, chat, context)
    state.wake_engine()
    base, settings = context.baseline(media), context.model.chat
    return await context.pools.run_chat(
        caller_in(request.scope).client, count_chat_tokens, marked, base, settings
    )
