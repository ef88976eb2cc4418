"""Build the items of an answer one after the other, and the events that report it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from corral.api.responses.item import Item

Events = list[dict[str, Any]]
Cuts = list[Any]  # of an item: the length of each delta, with the number of its probabilities if it has any


@dataclass(frozen=True, slots=True)
class _Kind:
    """Where an item stores its text: in a part, or in a field. `event`: the name of its events."""

    event: str
    field: str
    part: Item | None = None


_KINDS = {
    "message": _Kind(
        "output_text", "text", {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    ),
    "reasoning": _Kind("reasoning_text", "text", {"type": "reasoning_text", "text": ""}),
    "function_call": _Kind("function_call_arguments", "arguments"),
    "custom_tool_call": _Kind("custom_tool_call_input", "input"),
}


_REPORTED = ("mcp_call", "mcp_list_tools")  # with events of their own


class ItemWriter:
    """Mutable: items are numbered without gaps, and one is closed before the next is opened."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.cuts: list[Cuts] = []
        self.type = ""  # of the item that is open
        self._texts: list[str] = []
        self._logprobs: list[Any] = []

    @property
    def snapshot(self) -> list[Item]:
        """Return all items, the open one with its text so far."""
        if not self.type:
            return self.items
        return [*self.items[:-1], _fill(self.items[-1], "".join(self._texts), self._logprobs)]

    def open(self, item: Item) -> Events:
        """Open an item without text."""
        assert not self.type, "an item is open"
        kind = _KINDS[item["type"]]
        self.type, self._texts, self._logprobs = item["type"], [], []
        self.items.append(item)
        self.cuts.append([])
        events = [{"type": "response.output_item.added", "output_index": self._index, "item": item}]
        if kind.part is not None:
            events.append(self._event("response.content_part.added", part=kind.part))
        return events

    def add(self, delta: str, logprobs: Sequence[Any] = ()) -> Events:
        kind = _KINDS[self.type]
        self._texts.append(delta)
        self._logprobs += logprobs
        self.cuts[-1].append([len(delta), len(logprobs)] if logprobs else len(delta))
        more = {"logprobs": list(logprobs)} if self.type == "message" else {}
        return [self._event(f"response.{kind.event}.delta", delta=delta, **more)]

    def close(self, status: str = "completed", **fields: Any) -> Events:
        """Close the open item, if there is one. `fields`: added to it."""
        if not self.type:
            return []
        kind, text = _KINDS[self.type], "".join(self._texts)
        item = {**_fill(self.items[-1], text, self._logprobs), **fields, "status": status}
        self.items[-1] = item
        more: Item = {"logprobs": self._logprobs} if self.type == "message" else {}
        if self.type == "function_call":
            more["name"] = item["name"]
        events = [self._event(f"response.{kind.event}.done", **{kind.field: text}, **more)]
        if kind.part is not None:
            events.append(self._event("response.content_part.done", part=item["content"][0]))
        self.type = ""
        return [*events, {"type": "response.output_item.done", "output_index": self._index, "item": item}]

    def add_whole(self, item: Item) -> Events:
        """Add an item that comes at once."""
        return [*self.begin_whole(item), *self.end_whole(item)]

    def begin_whole(self, item: Item) -> Events:
        """Add an item that is not written by the model."""
        assert not self.type, "an item is open"
        self.items.append(item)
        self.cuts.append([])
        events = [{"type": "response.output_item.added", "output_index": self._index, "item": _unended(item)}]
        kind = item["type"]
        if kind in _REPORTED:
            events.append(self._report(f"response.{kind}.in_progress"))
        if kind == "mcp_call":
            named = {"delta": "delta", "done": "arguments"}
            events += [
                self._report(f"response.mcp_call_arguments.{end}", **{field: item["arguments"]})
                for end, field in named.items()
            ]
        return events

    def end_whole(self, item: Item) -> Events:
        self.items[-1] = item
        kind, end = item["type"], "failed" if item.get("error") else "completed"
        events = [self._report(f"response.{kind}.{end}")] if kind in _REPORTED else []
        return [*events, {"type": "response.output_item.done", "output_index": self._index, "item": item}]

    def _report(self, type: str, **fields: Any) -> dict[str, Any]:
        return {"type": type, "item_id": self.items[-1]["id"], "output_index": self._index, **fields}

    @property
    def _index(self) -> int:
        return len(self.items) - 1

    def _event(self, type: str, **fields: Any) -> dict[str, Any]:
        content = {"content_index": 0} if _KINDS[self.type].part is not None else {}
        place = {"item_id": self.items[-1]["id"], "output_index": self._index, **content}
        return {"type": type, **place, **fields}


def replay_items(items: Sequence[Item], cuts: Sequence[Cuts]) -> Iterator[dict[str, Any]]:
    """Yield the events of complete items, as they were sent."""
    writer = ItemWriter()
    for item, cut in zip(items, cuts, strict=True):
        if item["type"] not in _KINDS:
            yield from writer.add_whole(item)
            continue
        yield from writer.open(_blank(item))
        text, logprobs = _text_of(item), _logprobs_of(item)
        for n_chars, n_probs in (each if isinstance(each, list) else (each, 0) for each in cut):
            yield from writer.add(text[:n_chars], logprobs[:n_probs])
            text, logprobs = text[n_chars:], logprobs[n_probs:]
        more = {name: item[name] for name in ("encrypted_content",) if name in item}
        yield from writer.close(item["status"], **more)


def _fill(item: Item, text: str, logprobs: list[Any]) -> Item:
    kind = _KINDS[item["type"]]
    if kind.part is None:
        return {**item, kind.field: text}
    part = {**kind.part, kind.field: text}
    if item["type"] == "message":
        part["logprobs"] = list(logprobs)
    return {**item, "content": [part]}


def _unended(item: Item) -> Item:
    """Return an item as it is announced: a call without arguments and output, a list without tools."""
    if item["type"] == "mcp_call":
        return {**item, "status": "in_progress", "arguments": "", "output": None, "error": None}
    return {**item, "tools": []} if item["type"] == "mcp_list_tools" else item


def _blank(item: Item) -> Item:
    kind = _KINDS[item["type"]]
    kept = {name: value for name, value in item.items() if name != "encrypted_content"}
    return {**kept, "status": "in_progress", **({"content": []} if kind.part else {kind.field: ""})}


def _text_of(item: Item) -> str:
    kind = _KINDS[item["type"]]
    return str(item["content"][0][kind.field] if kind.part else item[kind.field])


def _logprobs_of(item: Item) -> list[Any]:
    return list(item["content"][0]["logprobs"]) if item["type"] == "message" else []
