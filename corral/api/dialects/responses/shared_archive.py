"""Stored responses and conversations of several servers with the same storage (`--shared-storage`).

Each request reads a conversation from disk; it is changed while no other server can change it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from corral.api.dialects.responses.archive import Archive
from corral.api.dialects.responses.conversation import Conversation
from corral.api.dialects.responses.item import RESPONSE, Item, is_id
from corral.api.dialects.responses.stored import StoredResponse, is_unfinished
from corral.core.client import Client
from corral.core.errors import InvalidRequest
from corral.storage.shared_documents import SharedDocumentStore, log_failure

T = TypeVar("T")


class SharedArchive(Archive):
    def __init__(self, store: SharedDocumentStore) -> None:
        super().__init__(store)
        self._shared = store

    def has(self, client: Client, id: str) -> bool:
        """Whether this server runs a response, or has not stored its end yet."""
        place = client.id, id
        return place in self._runs or place in self.restoring or self._shared.is_pending(client, id)

    async def is_unfinished(self, client: Client, id: str) -> bool:
        """Whether a response runs, as far as is stored."""
        data = await self._store.load(client, id) if is_id(id, RESPONSE) else None
        return data is not None and is_unfinished(data)

    async def edit_conversation(self, client: Client, id: str, edit: Callable[[Conversation], T]) -> T:
        await self.load_conversation(client, id)
        made: list[T] = []

        def apply(data: bytes) -> bytes:
            conversation = Conversation.decode(data)
            made.append(edit(conversation))
            return conversation.encode()

        await self._shared.edit(client, id, apply)
        return made[0] if made else edit(await self.load_conversation(client, id))  # it was just removed

    def extend(self, client: Client, conversation: Conversation, items: list[Item]) -> None:
        """Add items to what the conversation has by then. Raises InvalidRequest if it had no room before."""
        conversation.check_room(items)
        self._shared.edit(client, conversation.id, lambda data: _extend(data, items)).add_done_callback(
            log_failure
        )

    def _decode_conversation(self, client: Client, id: str, data: bytes) -> Conversation:  # noqa: ARG002
        return Conversation.decode(data)

    async def _load_previous(self, client: Client, id: str) -> StoredResponse:
        if self.find_run(client, id) is None and await self.is_unfinished(client, id):
            raise InvalidRequest(f"'{id}' is not complete yet", field="previous_response_id")
        return await super()._load_previous(client, id)


def _extend(data: bytes, items: list[Item]) -> bytes:
    conversation = Conversation.decode(data)
    known = {item["id"] for item in conversation.items}
    conversation.add([item for item in items if item["id"] not in known])
    return conversation.encode()
