"""Convert items to canonical messages, and record where each part came from.

Reasoning, text and calls of an assistant are separate items here; in a chat they are one message.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from corral.api.responses.item import Item
from corral.api.responses.mcp import DECLINED, output_text
from corral.api.responses.part import as_parts, parse_part, parse_text
from corral.api.responses.tool import CUSTOM_INPUT, flat_name
from corral.api.shared.content import Part, plain, require_text
from corral.api.shared.warnings import Warnings
from corral.core.errors import InvalidRequest

_SEAL = "corral:"  # of reasoning in a form to send back, as this server writes it
_SUMMARY = "Summary of the conversation so far:"
_OF_ITEM = ("id", "status", "created_by")
_OF_MESSAGE = (*_OF_ITEM, "role", "content", "phase")
_OF_CALL = (*_OF_ITEM, "call_id", "name", "namespace", "arguments", "input", "caller")
_OF_OUTPUT = (*_OF_ITEM, "call_id", "name", "namespace", "output", "caller")
_OF_REASONING = (*_OF_ITEM, "summary", "content", "encrypted_content")
_FOREIGN = ("_call", "_call_output", "_output", "_tools", "_request", "_response")  # ends of types
_UNREADABLE = ("compaction_trigger", "program", "configuration_update")
_OF_COMPACTION = (*_OF_ITEM, "encrypted_content")


def seal(text: str) -> str:
    """Encode a text so that clients without a store can send it back; it is not secret."""
    return _SEAL + base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()


class MessageBuilder:
    """Mutable: grows item by item. `names`: the client's names of canonical fields.

    `file_texts`: the contents of files, by the places of their parts.
    """

    def __init__(self, file_texts: Mapping[str, str], remarks: Warnings) -> None:
        self.messages: list[dict[str, Any]] = []
        self.names: dict[str, str] = {}
        self._file_texts = file_texts
        self._remarks = remarks
        self._turn: _Turn | None = None
        self._asked: dict[str, Item] = {}  # approvals

    def add(self, item: Item, place: str) -> None:
        kind = item["type"]
        if kind == "message":
            self._add_message(item, place)
        elif kind in ("function_call", "custom_tool_call"):
            self._add_call(item, place)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self._add_output(item, place)
        elif kind == "mcp_call":
            self._add_mcp_call(item, output_text(item), place)
        elif kind == "mcp_approval_request":
            self._asked[item["id"]] = item
        elif kind == "mcp_approval_response":
            self._add_approval(item, place)
        elif kind == "mcp_list_tools":
            return  # the functions are in the tools
        elif kind == "reasoning":
            self._add_reasoning(item, place)
        elif kind in ("compaction", "compaction_summary"):
            self._add_summary(item, place)
        elif kind.endswith(_FOREIGN) or kind in _UNREADABLE:
            self._remarks.warn(
                place, f"was left out: this server cannot use an item of the type '{kind:.64}'"
            )
        else:
            message = f"items of the type '{kind:.64}' are not supported"
            raise InvalidRequest(message, field=f"{place}.type")

    def finish(self) -> None:
        """Close the assistant message, if one is open."""
        turn, self._turn = self._turn, None
        if turn is not None and (turn.is_begun or turn.reasoning):
            self.names |= turn.names(f"messages[{len(self.messages)}]")
            self.messages.append(turn.render())

    def _add_message(self, item: Item, place: str) -> None:
        self._remarks.check_keys(item, _OF_MESSAGE, place)
        where = f"{place}.content"
        parts = as_parts(item["content"], where)
        if item["role"] == "assistant":
            texts = [parse_text(part, f"{where}[{i}]", self._remarks) for i, part in enumerate(parts)]
            turn = self._open(place, is_new=self._turn is not None and self._turn.is_said)
            turn.parts += texts
            return
        self.finish()
        self._add_parts(item["role"], self._parse(parts, where), place, where)

    def _add_call(self, item: Item, place: str) -> None:
        self._remarks.check_keys(item, _OF_CALL, place)
        name = flat_name(require_text(item, "name", place), item.get("namespace"))
        is_custom = item["type"] == "custom_tool_call"
        arguments = require_text(item, "input" if is_custom else "arguments", place)
        if is_custom:
            arguments = json.dumps({CUSTOM_INPUT: arguments}, ensure_ascii=False)
        function = {"name": name, "arguments": arguments}
        call = {"id": require_text(item, "call_id", place), "type": "function", "function": function}
        turn = self._open(place)
        turn.calls.append(call)
        turn.places.append(place)

    def _add_output(self, item: Item, place: str) -> None:
        self._remarks.check_keys(item, _OF_OUTPUT, place)
        self.finish()
        where = f"{place}.output"
        parts = self._parse(as_parts(item.get("output"), where), where)
        self._add_parts("tool", parts, place, where, tool_call_id=require_text(item, "call_id", place))

    def _add_mcp_call(self, item: Item, output: str, place: str) -> None:
        """Add a call that a server has run, or did not run, with what the model should know of it."""
        name = flat_name(require_text(item, "name", place), require_text(item, "server_label", place))
        function = {"name": name, "arguments": require_text(item, "arguments", place)}
        turn = self._open(place)
        turn.calls.append({"id": item["id"], "type": "function", "function": function})
        turn.places.append(place)
        self.finish()
        self._add_parts("tool", [{"type": "text", "text": output}], place, place, tool_call_id=item["id"])

    def _add_approval(self, item: Item, place: str) -> None:
        """Approved calls run, and follow as items of their own."""
        asked = self._asked.get(str(item.get("approval_request_id")))
        if asked is None:
            raise InvalidRequest("names no request", field=f"{place}.approval_request_id")
        if item.get("approve") is not True:
            reason = item.get("reason")
            self._add_mcp_call(asked, f"{DECLINED} {reason}" if isinstance(reason, str) else DECLINED, place)

    def _add_reasoning(self, item: Item, place: str) -> None:
        self._remarks.check_keys(item, _OF_REASONING, place)
        text = self._text_of(item, "content", place) or _unseal(item.get("encrypted_content"))
        text = text or self._text_of(item, "summary", place)
        if not text and item.get("encrypted_content"):
            self._remarks.warn(place, "was left out: only the server that made it can read it")
        turn = self._open(place, is_new=self._turn is not None and self._turn.is_begun)
        if text:
            turn.reasoning.append(text)

    def _add_summary(self, item: Item, place: str) -> None:
        self._remarks.check_keys(item, _OF_COMPACTION, place)
        text = _unseal(item.get("encrypted_content"))
        if not text:
            self._remarks.warn(place, "was left out: only the server that made it can read it")
            return
        self.finish()
        summary = {"type": "text", "text": f"{_SUMMARY}\n{text}"}
        self._add_parts("user", [summary], place, place)

    def _text_of(self, item: Item, name: str, place: str) -> str:
        where = f"{place}.{name}"
        parts = as_parts(item.get(name) or [], where)
        texts = [parse_text(part, f"{where}[{i}]", self._remarks) for i, part in enumerate(parts)]
        return "\n".join(part["text"] for part in texts)

    def _parse(self, parts: list[Any], place: str) -> list[Part]:
        return [
            parse_part(part, f"{place}[{i}]", self._file_texts, self._remarks) for i, part in enumerate(parts)
        ]

    def _add_parts(self, role: str, parts: list[Part], place: str, where: str, **more: Any) -> None:
        own = f"messages[{len(self.messages)}]"
        self.names |= {own: place, f"{own}.content": where}
        for i, _ in enumerate(parts):
            self.names[f"{own}.content[{i}]"] = f"{where}[{i}]"
        self.messages.append({"role": role, "content": plain(parts), **more})

    def _open(self, place: str, is_new: bool = False) -> _Turn:
        if is_new:
            self.finish()
        self._turn = self._turn or _Turn(place)
        return self._turn


class _Turn:
    """Mutable: an assistant message under construction. `places`: those of its calls."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.reasoning: list[str] = []
        self.parts: list[Part] = []
        self.calls: list[dict[str, Any]] = []
        self.places: list[str] = []

    @property
    def is_begun(self) -> bool:
        return bool(self.parts or self.calls)

    @property
    def is_said(self) -> bool:
        """Whether text was added and no call followed: the next text starts another message."""
        return bool(self.parts) and not self.calls

    def names(self, own: str) -> dict[str, str]:
        calls = {f"{own}.tool_calls[{i}]": place for i, place in enumerate(self.places)}
        return {own: self.place, **calls}

    def render(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": plain(self.parts)}
        if self.reasoning:
            message["reasoning_content"] = "\n".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = self.calls
        return message


def _unseal(sealed: Any) -> str:
    """Decode sealed reasoning; empty if another server sealed it."""
    if not isinstance(sealed, str) or not sealed.startswith(_SEAL):
        return ""
    try:
        return base64.b64decode(sealed.removeprefix(_SEAL), validate=True).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return ""
