"""Convert the events of the message parser to the items of an answer."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pydantic_core import from_json

from corral.api.dialects.responses.item import Item, item_id
from corral.api.dialects.responses.tool import CUSTOM_INPUT, ToolTable
from corral.api.dialects.responses.transcript import seal
from corral.api.dialects.responses.writer import Events, ItemWriter
from corral.chat.event import CallArguments, CallBroken, CallStarted, Content, Diagnosis, Event, Reasoning
from corral.chat.reader import MessageParser


class Output:
    """Mutable. A call appears with the beginning of its arguments. Until then it may turn out to be text;
    later it stays a call, which is cut off.

    `seals`: reasoning has a form to send back. `hosted`: namespaces whose calls this server runs.
    `n_reasoning`: tokens of reasoning.
    """

    def __init__(
        self, parser: MessageParser, owner: str, tools: ToolTable, seals: bool, hosted: Collection[str] = ()
    ) -> None:
        self.writer = ItemWriter()
        self.warnings: list[str] = []
        self.is_cut = False  # in the middle of a call
        self.n_reasoning = 0
        self._parser = parser
        self._owner = owner
        self._tools = tools
        self._seals = seals
        self._call: _Call | None = None
        self._skips_text = False
        self._n_unclear = 0  # tokens that may belong to whatever comes next
        self._logprobs: list[Any] = []  # the same of their probabilities
        self._hosted = hosted
        self.hosted_calls: list[Item] = []
        self.n_calls = 0  # that the client has to run

    def feed(self, text: str, n_tokens: int = 0, logprobs: Sequence[Any] = ()) -> Events:
        """Parse more text, of `n_tokens` tokens, and return the events it causes."""
        events = self._parser.feed(text)
        self._logprobs += logprobs
        self._count(events, n_tokens)
        return self._apply(events)

    def finish(self, is_whole: bool) -> Events:
        """Close everything. `is_whole`: the model ended the answer itself."""
        events = self._apply(self._parser.finish())
        status = "completed" if is_whole and not self.is_cut else "incomplete"
        return [*events, *self._close(status)]

    def stop(self) -> Events:
        """Close what is open after an error or a cancellation."""
        self._call = None if self._call is not None and not self._call.is_shown else self._call
        return self._close("incomplete")

    def _count(self, events: list[Event], n_tokens: int) -> None:
        kinds = {type(event) for event in events} & {Content, Reasoning, CallStarted}
        if Reasoning in kinds or (not kinds and self.writer.type == "reasoning"):
            self.n_reasoning += n_tokens + self._n_unclear
            self._n_unclear = 0
        else:
            self._n_unclear = 0 if kinds or self.writer.type else self._n_unclear + n_tokens
        if kinds and Content not in kinds:
            self._logprobs = []

    def _apply(self, events: list[Event]) -> Events:
        last = max((i for i, event in enumerate(events) if isinstance(event, Content)), default=-1)
        return [out for i, event in enumerate(events) for out in self._apply_one(event, i == last)]

    def _apply_one(self, event: Event, is_last_text: bool) -> Events:
        if isinstance(event, Content):
            return self._add_text(event.text, is_last_text)
        if isinstance(event, Reasoning):
            opened = self._open("reasoning", summary=[], content=[])
            return [*opened, *self.writer.add(event.text)]
        if isinstance(event, CallStarted):
            closed = self._close() if self._call is not None else []
            self._call = _Call(event.id, event.name)
            return closed
        if isinstance(event, CallArguments):
            return self._add_arguments(event.text)
        if isinstance(event, CallBroken):
            return self._break_call()
        if isinstance(event, Diagnosis):
            self.warnings.append(f"something that looks like a tool call is none: {event.reason}")
        return []

    def _add_text(self, text: str, takes_logprobs: bool) -> Events:
        if self._skips_text:  # of the call that is cut off
            self._skips_text = False
            return []
        opened = self._open("message", role="assistant", content=[])
        logprobs: list[Any] = []
        if takes_logprobs:
            logprobs, self._logprobs = self._logprobs, []
        return [*opened, *self.writer.add(text, logprobs)]

    def _add_arguments(self, text: str) -> Events:
        assert self._call is not None
        if self._is_hosted(self._call):
            self._call.arguments += text
            return []
        is_custom = self._tools.origin(self._call.name).kind == "custom"
        delta = self._call.feed_input(text) if is_custom else text
        return [*self._show_call(), *self.writer.add(delta)] if delta else []

    def _show_call(self) -> Events:
        """Open the item of a call, if that was not done yet."""
        call = self._call
        assert call is not None
        if call.is_shown:
            return []
        call.is_shown = True
        self.n_calls += 1
        origin = self._tools.origin(call.name)
        own: Item = {"call_id": call.id, "name": origin.name}
        if origin.namespace:
            own["namespace"] = origin.namespace
        if origin.kind == "custom":
            return self._begin("custom_tool_call", **own, input="")
        return self._begin("function_call", **own, arguments="")

    def _break_call(self) -> Events:
        call = self._call
        if call is None or not call.is_shown:
            self._call = None
            return []
        self.is_cut = self._skips_text = True
        return self._close("incomplete")

    def _open(self, type: str, **fields: Any) -> Events:
        if self._call is None and self.writer.type == type:
            return []
        return [*self._close(), *self._begin(type, **fields)]

    def _begin(self, type: str, **fields: Any) -> Events:
        closed = self._close_item("completed")
        id = item_id(type, self._owner, len(self.writer.items))
        return [*closed, *self.writer.open({"id": id, "type": type, "status": "in_progress", **fields})]

    def _close(self, status: str = "completed") -> Events:
        """Close the open item, and a call that was not shown yet."""
        call = self._call
        events: Events = []
        if call is not None and self._is_hosted(call):
            self._keep_hosted(call)
        elif call is not None and not call.is_shown:
            is_custom = self._tools.origin(call.name).kind == "custom"
            events = [*self._show_call(), *([] if is_custom else self.writer.add("{}"))]
        self._call = None
        return [*events, *self._close_item(status)]

    def _is_hosted(self, call: _Call) -> bool:
        return self._tools.origin(call.name).namespace in self._hosted

    def _keep_hosted(self, call: _Call) -> None:
        origin = self._tools.origin(call.name)
        arguments = call.arguments or "{}"
        self.hosted_calls.append(
            {"server_label": origin.namespace, "name": origin.name, "arguments": arguments}
        )

    def _close_item(self, status: str) -> Events:
        if self.writer.type == "reasoning" and self._seals:
            (part,) = self.writer.snapshot[-1]["content"]
            return self.writer.close(status, encrypted_content=seal(part["text"]))
        return self.writer.close(status)


class _Call:
    """Mutable: a call in progress."""

    def __init__(self, id: str, name: str) -> None:
        self.id = id
        self.name = name
        self.is_shown = False
        self.arguments = ""
        self._n_shown = 0

    def feed_input(self, text: str) -> str:
        """Return the new part of the text for a custom tool."""
        self.arguments += text
        try:
            value = from_json(self.arguments, allow_partial="trailing-strings")
        except ValueError:
            return ""
        known = value.get(CUSTOM_INPUT) if isinstance(value, dict) else None
        delta = known[self._n_shown :] if isinstance(known, str) else ""
        self._n_shown += len(delta)
        return delta
