"""Convert the events of the message parser to the items of an answer."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pydantic_core import from_json

from corral.api.responses.item import Item, item_id
from corral.api.responses.message_builder import seal
from corral.api.responses.tool import CUSTOM_INPUT, ToolTable
from corral.api.responses.writer import Events, ItemWriter
from corral.api.shared.answer_builder import AnswerBuilder
from corral.chat.event import CallStarted, Content, Event, Reasoning
from corral.chat.reader import MessageParser


class Output(AnswerBuilder["_Call"]):
    """Mutable: the items of an answer.

    `seals`: reasoning has a form to send back. `hosted`: namespaces whose calls this server runs.
    `n_reasoning`: tokens of reasoning.
    """

    def __init__(
        self, parser: MessageParser, owner: str, tools: ToolTable, seals: bool, hosted: Collection[str] = ()
    ) -> None:
        super().__init__(parser)
        self.writer = ItemWriter()
        self.n_reasoning = 0
        self._owner = owner
        self._tools = tools
        self._seals = seals
        self._n_unclear = 0  # tokens that may belong to whatever comes next
        self._logprobs: list[Any] = []  # the same of their probabilities
        self._n_texts = 0  # in the step that are still to be added
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
        self._n_texts = sum(isinstance(event, Content) for event in events)
        return super()._apply(events)

    def _new_call(self, id: str, name: str) -> _Call:
        return _Call(id, name)

    def _apply_one(self, event: Event) -> Events:
        self._n_texts -= isinstance(event, Content)
        return super()._apply_one(event)

    def _add_text(self, text: str) -> Events:
        opened = self._open("message", role="assistant", content=[])
        logprobs: list[Any] = []
        if not self._n_texts:  # the last text of the step takes all of them
            logprobs, self._logprobs = self._logprobs, []
        return [*opened, *self.writer.add(text, logprobs)]

    def _add_reasoning(self, text: str) -> Events:
        return [*self._open("reasoning", summary=[], content=[]), *self.writer.add(text)]

    def _add_arguments(self, call: _Call, text: str) -> Events:
        if self._is_hosted(call):
            call.arguments += text
            return []
        is_custom = self._tools.origin(call.name).kind == "custom"
        delta = call.feed_input(text) if is_custom else text
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

    def _open(self, type: str, **fields: Any) -> Events:
        if self._call is None and self.writer.type == type:
            return []
        return [*self._close(), *self._begin(type, **fields)]

    def _begin(self, type: str, **fields: Any) -> Events:
        closed = self._close_item("completed")
        id = item_id(type, self._owner, len(self.writer.items))
        return [*closed, *self.writer.open({"id": id, "type": type, "status": "in_progress", **fields})]

    def _close(self, status: str = "completed") -> Events:
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
