"""Files with chats, to import."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import FilePayload

FILLER = "A paragraph of words that nobody looks for, again and again.\n\n" * 12


def file_of(*chats: dict[str, Any]) -> FilePayload:
    text = json.dumps({"format": "corral-chats", "version": 1, "chats": chats})
    return {"name": "chats.json", "mimeType": "application/json", "buffer": text.encode()}


def chat_of(n: int, title: str, *contents: str) -> dict[str, Any]:
    """Questions and answers; the first chat is the newest."""
    ids = [f"{1000 * n + i:032x}" for i in range(len(contents))]
    messages = {
        id: {
            **{"id": id, "parent": ids[i - 1] if i else None, "content": contents[i]},
            **{"role": "assistant" if i % 2 else "user", "state": "done", "createdAt": i + 1},
        }
        for i, id in enumerate(ids)
    }
    time = 10_000 - n
    return {
        **{"id": f"{n:032x}", "title": title, "createdAt": time, "updatedAt": time},
        **{"system": "", "settings": {}, "leaf": ids[-1], "messages": messages},
    }


CHATS = (
    chat_of(1, "Animals", "Tell me of zebras.", f"{FILLER}No **zebra** has spots. Two Zebras meet.", "More?"),
    chat_of(2, "The zoo", "What is in it?", f"There are lions, and a zebra called Max.\n\n{FILLER}"),
    chat_of(3, "Trains", "When does it leave?", "At nine."),
)
