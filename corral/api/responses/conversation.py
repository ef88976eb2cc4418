"""A stored conversation, which responses add their items to."""

from __future__ import annotations

import time
from typing import Any

import orjson

from corral.api.responses.item import CONVERSATION, Item, new_id
from corral.chat.message import MAX_MESSAGES
from corral.core.errors import InvalidRequest, NotFound


class Conversation:
    """Mutable: one request's copy of it. `n_added`: the number of items ever added, so that ids are not
    reused."""

    def __init__(
        self,
        metadata: dict[str, str],
        id: str = "",
        created_at: int = 0,
        items: list[Item] | None = None,
        n_added: int = 0,
    ) -> None:
        self.id = id or new_id(CONVERSATION)
        self.created_at = created_at or int(time.time())
        self.metadata = metadata
        self.items: list[Item] = items or []
        self.n_added = n_added

    def add_new(self, items: list[Item]) -> None:
        """Add the items that it does not have."""
        known = {item["id"] for item in self.items}
        self.add([item for item in items if item["id"] not in known])

    def add(self, items: list[Item]) -> None:
        if len(self.items) + len(items) > MAX_MESSAGES:
            raise InvalidRequest(f"a conversation has at most {MAX_MESSAGES} items", field="items")
        self.items += items
        self.n_added += len(items)

    def find(self, item_id: str) -> Item:
        for item in self.items:
            if item["id"] == item_id:
                return item
        raise NotFound(f"item '{item_id:.128}' not found in this conversation")

    def render(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "conversation",
            "created_at": self.created_at,
            "metadata": self.metadata,
        }

    def encode(self) -> bytes:
        return orjson.dumps(vars(self))

    @staticmethod
    def decode(data: bytes) -> Conversation:
        return Conversation(**orjson.loads(data))
