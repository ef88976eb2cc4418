"""How things are placed on a screen."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import FilePayload, Locator, expect

from tests.browser.chat_page import ChatPage

PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}


def is_inside(element: Locator) -> bool:
    """Whether all of it is on the screen."""
    box, size = element.bounding_box(), element.page.viewport_size
    assert box
    assert size
    return (
        box["x"] >= 0
        and box["y"] >= 0
        and box["x"] + box["width"] <= size["width"] + 1
        and box["y"] + box["height"] <= size["height"] + 1
    )


def show_answer(chat: ChatPage, text: str, **fields: object) -> Locator:
    """A chat whose only answer is this text; `fields` are others of that message."""
    question, answer = f"{1:032x}", f"{2:032x}"
    common = {"state": "done", "createdAt": 1}
    messages = {
        question: {"id": question, "parent": None, "role": "user", "content": "Show it.", **common},
        answer: {
            **{"id": answer, "parent": question, "role": "assistant", "content": text, **common},
            **fields,
        },
    }
    return show_chat(chat, messages, answer)


def show_chat(chat: ChatPage, messages: dict[str, Any], leaf: str) -> Locator:
    """The last message of a chat with these messages."""
    saved = {
        **{"id": f"{9:032x}", "title": "Shown", "createdAt": 1, "updatedAt": 1},
        **{"system": "", "settings": {}, "leaf": leaf, "messages": messages},
    }
    text = json.dumps({"format": "corral-chats", "version": 1, "chats": [saved]})
    file: FilePayload = {"name": "chats.json", "mimeType": "application/json", "buffer": text.encode()}
    chat.page.get_by_label("File with chats").set_input_files(file)
    shown = chat.page.locator(f'article[data-id="{leaf}"]')
    expect(shown).to_be_visible()
    return shown
