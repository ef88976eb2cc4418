"""One request for a response: its context, and where the answer is stored."""

from __future__ import annotations

from dataclasses import dataclass

from corral.api.responses.conversation import Conversation
from corral.api.responses.file import read_files
from corral.api.responses.item import RESPONSE, Item, new_id, normalize_items
from corral.api.responses.parse import ParsedResponses, Placed, parse_context
from corral.api.responses.render import Events, ResponsesRenderer
from corral.api.responses.response_store import ResponseStore
from corral.api.responses.schema import ContextFields
from corral.api.responses.stored import StoredResponse
from corral.api.responses.truncation import truncate
from corral.core.client import Client
from corral.core.errors import CorralError, InvalidRequest
from corral.generate.call import AnyCall
from corral.generate.disconnect import run_for_client
from corral.generate.error_field import renaming

_FIRST_INPUT = 1 << 31  # items that are asked are numbered from here, those that answer from 0


@dataclass(frozen=True, slots=True)
class ResponseContext:
    """`input`: the new items; `items`: all items, with the client's names of them."""

    id: str
    client: Client
    store: ResponseStore
    input: list[Item]
    items: Placed
    conversation: Conversation | None

    async def keep(self, stored: StoredResponse) -> str:
        """Add an ended response to its conversation, and store it if the client asked for that. Returns why
        it will not survive this server, or "". Raises CorralError if it cannot be kept at all."""
        if self.conversation is not None and stored.response["status"] in ("completed", "incomplete"):
            await self.store.extend(self.client, self.conversation.id, stored.items)
        if stored.response["store"]:
            return self.store.keep(self.client, stored)
        return ""

    async def end(self, renderer: ResponsesRenderer, error: CorralError | None) -> Events:
        """Store the response, and return what ends its stream, which says if it could not be stored. `error`:
        what ended the response; raised if nothing was sent before."""
        events = renderer.fail(error) if error is not None else []
        try:
            trouble = await self.keep(renderer.stored)
        except CorralError as refusal:  # it is too large
            return [*events, *renderer.end(refusal.message, is_stored=False)]
        lost = f"the response is kept in memory only: --responses: {trouble}" if trouble else ""
        return [*events, *renderer.end(lost)]


async def open_context(call: AnyCall, body: ContextFields) -> ResponseContext:
    store, client = call.services.responses, call.client
    id, conversation, before = new_id(RESPONSE), None, []
    if body.conversation is not None:
        if body.previous_response_id is not None:
            raise InvalidRequest("cannot be combined with 'previous_response_id'", field="conversation")
        given = body.conversation
        conversation = await store.load_conversation(client, given if isinstance(given, str) else given.id)
        before = [(f"conversation.items[{i}]", item) for i, item in enumerate(conversation.items)]
    elif body.previous_response_id is not None:
        before = list(await store.trace(client, body.previous_response_id))
    is_new = body.input != "" or _is_question(body, bool(before))
    new = normalize_items(body.input if is_new else [], "input", id, _FIRST_INPUT)
    input = await store.resolve(client, new, before)
    items = [*before, *((f"input[{i}]", item) for i, item in enumerate(input))]
    return ResponseContext(id, client, store, input, items, conversation)


def _is_question(body: ContextFields, has_context: bool) -> bool:
    """compat: /v1/responses: an empty text alone is a message, with which Codex has a model loaded."""
    return "input" in body.model_fields_set and not has_context and not body.instructions


async def parse_in_context(call: AnyCall, body: ContextFields, context: ResponseContext) -> ParsedResponses:
    services = call.services
    texts = await run_for_client(read_files(context.items, services.media_source), call.caller.disconnect)
    parsed = await services.pools.run_prompt(call.client, parse_context, body, context.items, texts)
    if body.truncation != "auto":
        return parsed
    with renaming(parsed.names):
        return await truncate(call, parsed)
