"""The content blocks of an answer, and the stream events that build them one after the other."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from corral.api.anthropic.conversation import ID_PREFIX
from corral.api.anthropic.tool_input import ToolInput
from corral.api.shared.answer_builder import AnswerBuilder, Events
from corral.chat.event import Reasoning
from corral.chat.reader import MessageParser


class AnswerContent(AnswerBuilder["_Call"]):
    """Mutable: blocks, numbered without gaps."""

    def __init__(self, parser: MessageParser, shows_reasoning: bool = True) -> None:
        super().__init__(parser)
        self.blocks: list[dict[str, Any]] = []
        self.n_thinking = 0  # tokens of reasoning
        self._shows_reasoning = shows_reasoning
        self._kind = ""  # of the open block

    @property
    def has_calls(self) -> bool:
        return any(block["type"] == "tool_use" for block in self.blocks)

    def feed(self, text: str, n_tokens: int = 0) -> Events:
        """Parse more text, of `n_tokens` tokens, and return the events it causes."""
        events = self._parser.feed(text)
        is_silent = not events and self._kind == "thinking"
        if is_silent or any(isinstance(event, Reasoning) for event in events):
            self.n_thinking += n_tokens
        return self._apply(events)

    def finish(self) -> Events:
        return [*self._apply(self._parser.finish()), *self._close()]

    def _new_call(self, id: str, name: str) -> _Call:
        return _Call(id, name)

    def _add_text(self, text: str) -> Events:
        events = self._open("text", {"type": "text", "text": ""})
        self.blocks[-1]["text"] += text
        return [*events, self._delta("text_delta", text=text)]

    def _add_reasoning(self, text: str) -> Events:
        events = self._open("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        if not self._shows_reasoning:
            return events
        self.blocks[-1]["thinking"] += text
        return [*events, self._delta("thinking_delta", thinking=text)]

    def _add_arguments(self, call: _Call, text: str) -> Events:
        sent = call.input.feed(text)
        return [*self._open_call(), self._delta("input_json_delta", partial_json=sent)] if sent else []

    def _open_call(self) -> Events:
        call = self._call
        assert call is not None
        block = {"type": "tool_use", "id": ID_PREFIX + call.id, "name": call.name, "input": {}}
        return self._open("tool_use", block)

    def _open(self, kind: str, block: dict[str, Any]) -> Events:
        if kind == self._kind:
            return []
        closed = self._close_block() if kind == "tool_use" else self._close()
        self._kind = kind
        self.blocks.append(block)
        index = len(self.blocks) - 1
        return [*closed, {"type": "content_block_start", "index": index, "content_block": dict(block)}]

    def _close(self, status: str = "completed") -> Events:  # noqa: ARG002
        opened = self._open_call() if self._call is not None else []
        return [*opened, *self._close_block()]

    def _close_block(self) -> Events:
        if not self._kind:
            return []
        kind, block, events = self._kind, self.blocks[-1], []
        self._kind = ""
        if kind == "tool_use" and self._call is not None:
            block["input"] = self._call.input.value()
            self._call = None
        if kind == "thinking":
            block["signature"] = _sign(block["thinking"])
            events = [self._delta("signature_delta", signature=block["signature"])]
        return [*events, {"type": "content_block_stop", "index": len(self.blocks) - 1}]

    def _delta(self, kind: str, **fields: str) -> dict[str, Any]:
        delta = {"type": kind, **fields}
        return {"type": "content_block_delta", "index": len(self.blocks) - 1, "delta": delta}


class _Call:
    """A call in progress."""

    def __init__(self, id: str, name: str) -> None:
        self.id = id
        self.name = name
        self.input = ToolInput()

    @property
    def is_shown(self) -> bool:
        return self.input.is_begun


def _sign(reasoning: str) -> str:
    """Return a signature, which clients require and send back; nothing here depends on it."""
    return base64.b64encode(hashlib.sha256(reasoning.encode()).digest()).decode()
