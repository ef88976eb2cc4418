"""Convert messages of content blocks to canonical messages, and record where each part came from."""

from __future__ import annotations

from typing import Any

from corral.api.anthropic.billing import mask_billing
from corral.api.anthropic.block import Block, BlockRemarks, as_blocks, parse_part, parse_text
from corral.api.shared.content import Part, plain, require_text
from corral.chat.message import MAX_MESSAGES
from corral.core.errors import InvalidRequest

ID_PREFIX = "toolu_"


class Conversation:
    """Mutable: grows message by message. `names`: the client's names of canonical fields."""

    def __init__(self, remarks: BlockRemarks) -> None:
        self.messages: list[dict[str, Any]] = []
        self.names: dict[str, str] = {}
        self.is_masked = False
        self._remarks = remarks

    def add_system(self, system: Any, place: str = "system") -> None:
        """Add the system prompt, if there is one."""
        if system is None or system == []:
            return
        parts = [
            parse_text(_require_kind(block, "text", where), where, self._remarks)
            for block, where in _placed(as_blocks(system, place), place)
        ]
        for part in parts:
            masked = mask_billing(part["text"])
            self.is_masked |= masked != part["text"]
            part["text"] = masked
        self._add("system", plain(parts), place)

    def add_all(self, messages: Any) -> None:
        if not isinstance(messages, list) or not messages or len(messages) > MAX_MESSAGES:
            raise InvalidRequest(f"must be a list of 1 to {MAX_MESSAGES} messages", field="messages")
        for i, message in enumerate(messages):
            self._add_message(message, f"messages[{i}]")

    def _add_message(self, message: Any, place: str) -> None:
        if not isinstance(message, dict):
            raise InvalidRequest("must be an object", field=place)
        self._remarks.check_keys(message, ("role", "content"), place)
        role, content, where = message.get("role"), message.get("content"), f"{place}.content"
        if role == "user":
            self._add_user(as_blocks(content, where), where)
        elif role == "assistant":
            self._add_assistant(as_blocks(content, where), where)
        elif role == "system":
            self.add_system(as_blocks(content, where), where)
        else:
            raise InvalidRequest("must be 'user', 'assistant' or 'system'", field=f"{place}.role")

    def _add_user(self, blocks: list[Block], place: str) -> None:
        """Add a user message; tool results in it become messages of their own, in place."""
        parts: list[Part] = []
        places: list[str] = []
        for block, where in _placed(blocks, place):
            if block["type"] == "tool_result":
                self._add_parts(parts, places, place)
                parts, places = [], []
                self._add_result(block, where)
            else:
                parts.append(parse_part(block, where, self._remarks))
                places.append(where)
        if parts or not blocks:
            self._add_parts(parts, places, place, is_needed=True)

    def _add_parts(self, parts: list[Part], places: list[str], place: str, is_needed: bool = False) -> None:
        if parts or is_needed:
            self._add("user", plain(parts), place)
            self._name_parts(places)

    def _add_result(self, block: Block, place: str) -> None:
        self._remarks.check_keys(block, ("tool_use_id", "content", "is_error"), place)
        id = require_text(block, "tool_use_id", place)
        content = block.get("content")
        blocks = as_blocks("" if content is None else content, f"{place}.content")
        placed = _placed(blocks, f"{place}.content")
        parts = [parse_part(inner, where, self._remarks) for inner, where in placed]
        if block.get("is_error"):
            parts, placed = [{"type": "text", "text": "Error:"}, *parts], [({}, place), *placed]
        self._add("tool", plain(parts), place, tool_call_id=plain_id(id))
        self._name_parts([where for _, where in placed])

    def _add_assistant(self, blocks: list[Block], place: str) -> None:
        texts: list[Part] = []
        reasoning: list[str] = []
        calls: list[dict[str, Any]] = []
        for block, where in _placed(blocks, place):
            kind = block["type"]
            if kind == "text":
                texts.append(parse_text(block, where, self._remarks))
            elif kind == "thinking":
                self._remarks.check_keys(block, ("thinking", "signature"), where)
                reasoning.append(require_text(block, "thinking", where))
            elif kind == "redacted_thinking":
                self._remarks.warn(where, "was left out: only the server that made it can read it")
            elif kind == "tool_use":
                calls.append(self._call(block, where))
            else:
                message = f"blocks of the type '{kind:.64}' are not supported here"
                raise InvalidRequest(message, field=f"{where}.type")
        more: dict[str, Any] = {"tool_calls": calls} if calls else {}
        if thought := "\n".join(filter(None, reasoning)):
            more["reasoning_content"] = thought
        self._add("assistant", plain(texts), place, **more)

    def _call(self, block: Block, place: str) -> dict[str, Any]:
        self._remarks.check_keys(block, ("id", "name", "input", "caller"), place)
        id, name = require_text(block, "id", place), require_text(block, "name", place)
        arguments = block.get("input", {})
        if not isinstance(arguments, dict):
            raise InvalidRequest("must be an object", field=f"{place}.input")
        return {"id": plain_id(id), "type": "function", "function": {"name": name, "arguments": arguments}}

    def _add(self, role: str, content: Any, place: str, **more: Any) -> None:
        self.names[f"messages[{len(self.messages)}]"] = place.removesuffix(".content")
        self.messages.append({"role": role, "content": content, **more})

    def _name_parts(self, places: list[str]) -> None:
        """Name the parts of the last message; a single text is not a part."""
        message = f"messages[{len(self.messages) - 1}]"
        if len(places) == 1:
            self.names[f"{message}.content"] = places[0]
        for i, place in enumerate(places):
            self.names[f"{message}.content[{i}]"] = place
            self.names[f"{message}.content[{i}].image_url"] = f"{place}.source"


def plain_id(id: str) -> str:
    """Return the id of a call as the model knows it."""
    return id.removeprefix(ID_PREFIX)


def _placed(blocks: list[Block], place: str) -> list[tuple[Block, str]]:
    return [(block, f"{place}[{i}]") for i, block in enumerate(blocks)]


def _require_kind(block: Block, kind: str, place: str) -> Block:
    if block["type"] != kind:
        raise InvalidRequest(f"must be '{kind}'", field=f"{place}.type")
    return block
