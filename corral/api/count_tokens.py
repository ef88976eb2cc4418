"""Count the tokens of a chat, for the routes of all APIs that have it."""

from __future__ import annotations

from corral.generate.call import AnyCall
from corral.generate.prepare_chat import count_chat_tokens, mark_chat
from corral.schema.chat import ChatRequest


async def count_tokens(call: AnyCall, chat: ChatRequest) -> int:
    """Needs no engine, but begins to load one that sleeps: clients that count tokens are about to use
    them."""
    context = call.services.prepare
    marked, media, _ = await mark_chat(call, chat)
    call.services.wake_engine()
    base, settings = context.request_defaults(media), context.model.chat
    return await context.pools.run_chat(call.client, count_chat_tokens, marked, base, settings)
