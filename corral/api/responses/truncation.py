"""`truncation: auto`: drop the oldest messages of a conversation that exceeds the context."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import replace
from typing import Any

from corral.api.responses.parse import ParsedResponses
from corral.generate.call import AnyCall
from corral.generate.model import ChatSettings
from corral.generate.params import RequestDefaults
from corral.generate.prepare_chat import count_chat_tokens, mark_chat
from corral.schema.chat import ChatRequest

_SYSTEM = ("system", "developer")
_PLACE = re.compile(r"messages\[(\d+)\](.*)", re.DOTALL)


async def truncate(call: AnyCall, parsed: ParsedResponses) -> ParsedResponses:
    """Return the request with the newest messages that fit; leading system messages stay."""
    context = call.services.prepare
    marked, media, _ = await mark_chat(call, parsed.chat)
    base, settings = context.request_defaults(media), context.model.chat
    start = await context.pools.run_text(call.client, plan_start, marked, base, settings)
    return _drop(parsed, _n_system(marked.messages), start)


def plan_start(chat: ChatRequest, base: RequestDefaults, settings: ChatSettings) -> int:
    """Return the index of the first message that stays after the system messages: a user's, if any."""
    messages, n_system = chat.messages, _n_system(chat.messages)
    users = [i for i, message in enumerate(messages) if i > n_system and message["role"] == "user"]
    starts = [n_system, *users]
    n_room = base.n_ctx - _n_reserved(chat.n_predict, base.n_ctx)

    def fits(start: int) -> bool:
        kept = [*messages[:n_system], *messages[start:]]
        return count_chat_tokens(chat.model_copy(update={"messages": kept}), base, settings) < n_room

    return starts[min(bisect_left(starts, True, key=fits), len(starts) - 1)]


def _n_reserved(n_predict: int, n_ctx: int) -> int:
    """Return the number of tokens to reserve for the answer."""
    return min(n_predict if n_predict >= 0 else n_ctx // 8, n_ctx // 2)


def _n_system(messages: list[dict[str, Any]]) -> int:
    return next((i for i, m in enumerate(messages) if m["role"] not in _SYSTEM), len(messages))


def _drop(parsed: ParsedResponses, n_system: int, start: int) -> ParsedResponses:
    n_dropped = start - n_system
    if not n_dropped:
        return parsed
    messages = parsed.chat.messages
    kept = parsed.chat.model_copy(update={"messages": [*messages[:n_system], *messages[start:]]})
    warning = f"Field 'truncation': the {n_dropped} oldest messages were left out"
    names = {_shift(place, n_system, n_dropped): name for place, name in parsed.names.items()}
    return replace(parsed, chat=kept.with_remarks_of(kept, [warning]), names=names)


def _shift(place: str, n_system: int, n_dropped: int) -> str:
    found = _PLACE.fullmatch(place)
    if found is None or int(found[1]) < n_system:
        return place
    index = int(found[1]) - n_dropped
    return f"messages[{index}]{found[2]}" if index >= n_system else f"dropped {place}"
