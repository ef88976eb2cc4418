"""Stored responses and conversations: each key sees its own.

Resolves references between them; `DocumentStore` holds the data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from corral.api.answer_log import AnswerLog
from corral.api.responses.conversation import Conversation
from corral.api.responses.item import CONVERSATION, RESPONSE, Item, is_id, owner_of
from corral.api.responses.parse import Placed
from corral.api.responses.render import ResponsesRenderer
from corral.api.responses.stored import UNFINISHED, StoredResponse, is_unfinished
from corral.chat.message import MAX_MESSAGES
from corral.core.client import Client
from corral.core.errors import InvalidRequest, NotFound, Unavailable
from corral.storage.document_store import DocumentStore

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunningResponse:
    """A response in the background. `log`: its events."""

    renderer: ResponsesRenderer
    log: AnswerLog

    @property
    def response(self) -> Item:
        """Return the response so far."""
        return self.renderer.response


class ResponseStore:
    """Mutable: also holds the responses that run in the background."""

    def __init__(self, store: DocumentStore) -> None:
        self._store = store
        self._running: dict[tuple[str, str], RunningResponse] = {}
        self.restoring: set[tuple[str, str]] = set()  # client and id of those that will run again

    @property
    def is_shared(self) -> bool:
        """Whether other servers have the same responses."""
        return self._store.is_shared

    def keep(self, client: Client, stored: StoredResponse) -> str:
        """Return why it will not survive this server, or ""."""
        return self._store.put(client, stored.response["id"], stored.encode())

    async def load(self, client: Client, id: str) -> StoredResponse:
        data = await self._store.load(client, id) if is_id(id, RESPONSE) else None
        if data is None:
            raise NotFound(f"response '{id:.128}' not found")
        return StoredResponse.decode(data)

    async def remove(self, client: Client, id: str) -> None:
        if (running := self.find_running(client, id)) is not None:
            await running.log.stop()
        await self.load(client, id)
        self._store.remove(client, id)

    def has(self, client: Client, id: str) -> bool:
        """Whether this server runs a response, or has not stored its end yet."""
        place = client.id, id
        return place in self._running or place in self.restoring or self._store.is_pending(client, id)

    async def is_unfinished(self, client: Client, id: str) -> bool:
        """Whether a response runs, as far as is stored."""
        data = await self._store.load(client, id) if is_id(id, RESPONSE) else None
        return data is not None and is_unfinished(data)

    def run(self, client: Client, running: RunningResponse, work: Coroutine[Any, Any, None]) -> None:
        """Have `work` write the log of a response, which clients find by its id until then."""
        place = client.id, running.log.id
        self._running[place] = running
        self.restoring.discard(place)
        running.log.run(work, lambda: self._running.pop(place))

    def find_running(self, client: Client, id: str) -> RunningResponse | None:
        if (client.id, id) in self.restoring:
            raise Unavailable(f"response '{id:.128}' continues when the model is loaded")
        return self._running.get((client.id, id))

    async def load_conversation(self, client: Client, id: str) -> Conversation:
        data = await self._store.load(client, id) if is_id(id, CONVERSATION) else None
        if data is None:
            raise NotFound(f"conversation '{id:.128}' not found")
        return Conversation.decode(data)

    async def edit_conversation(self, client: Client, id: str, edit: Callable[[Conversation], T]) -> T:
        """Change a conversation; after an error it is as before."""
        made: list[T] = []

        def apply(data: bytes) -> bytes:
            conversation = Conversation.decode(data)
            made.append(edit(conversation))
            return conversation.encode()

        if not (is_id(id, CONVERSATION) and await self._store.edit(client, id, apply)):
            raise NotFound(f"conversation '{id:.128}' not found")
        return made[-1]

    def keep_conversation(self, client: Client, conversation: Conversation) -> None:
        self._store.put(client, conversation.id, conversation.encode())

    async def extend(self, client: Client, id: str, items: list[Item]) -> None:
        """Add items to a conversation, unless it was removed. It has them already if an earlier server has
        finished the response. Raises InvalidRequest without room for them."""

        def add(conversation: Conversation) -> None:
            conversation.add_new(items)

        with contextlib.suppress(NotFound):
            await self.edit_conversation(client, id, add)

    async def remove_conversation(self, client: Client, id: str) -> None:
        await self.load_conversation(client, id)
        self._store.remove(client, id)

    async def trace(self, client: Client, id: str) -> Placed:
        """Return all items of a response and of those it continues, oldest first."""
        found: list[tuple[str, Item]] = []
        next_id: str | None = id
        while next_id is not None:
            stored = await self._load_previous(client, next_id)
            found = [*((f"previous_response_id '{next_id}'", item) for item in stored.items), *found]
            if len(found) > MAX_MESSAGES:
                message = f"has more than {MAX_MESSAGES} items before it"
                raise InvalidRequest(message, field="previous_response_id")
            next_id = stored.response["previous_response_id"]
        return found

    async def resolve(self, client: Client, items: list[Item], before: Placed) -> list[Item]:
        """Replace references by the items they name. `before`: the items that precede them."""
        known = {item["id"]: item for _, item in before}
        return [
            await self._find_item(client, item["id"], known, f"input[{i}].id")
            if item["type"] == "item_reference"
            else item
            for i, item in enumerate(items)
        ]

    async def close(self) -> None:
        for running in list(self._running.values()):
            await running.log.stop()
        await self._store.close()

    async def _load_previous(self, client: Client, id: str) -> StoredResponse:
        running = self.find_running(client, id)
        is_elsewhere = self.is_shared and running is None and await self.is_unfinished(client, id)
        if is_elsewhere or (running is not None and running.response["status"] in UNFINISHED):
            raise InvalidRequest(f"'{id}' is not complete yet", field="previous_response_id")
        try:
            stored = await self.load(client, id)
        except NotFound:
            error = NotFound(f"Field 'previous_response_id': response '{id:.128}' not found")
            error.details |= {"param": "previous_response_id"}
            raise error from None
        if stored.response["conversation"] is not None:
            message = f"'{id}' is part of a conversation; continue that one with 'conversation'"
            raise InvalidRequest(message, field="previous_response_id")
        return stored

    async def _find_item(self, client: Client, id: str, known: dict[str, Item], place: str) -> Item:
        if id in known:
            return known[id]
        owner = owner_of(id)
        data = await self._store.load(client, f"{RESPONSE}_{owner}") if owner else None
        for item in StoredResponse.decode(data).items if data is not None else ():
            if item["id"] == id:
                return item
        data = await self._store.load(client, f"{CONVERSATION}_{owner}") if owner else None
        if data is not None:
            return (await self.load_conversation(client, f"{CONVERSATION}_{owner}")).find(id)
        raise InvalidRequest(f"item '{id:.128}' not found", field=place)
