"""Render a response of several turns: the items of all of them, with the calls that this server has run."""

from __future__ import annotations

from typing import Any

from corral.api.choice import Choice
from corral.api.dialects.responses.item import Item, item_id
from corral.api.dialects.responses.mcp import McpAccess
from corral.api.dialects.responses.parse import ParsedResponses
from corral.api.dialects.responses.render import Events, ResponsesRenderer
from corral.api.prepare_chat import PreparedChat
from corral.core.result import UNFINISHED, Done

_COUNTS = ("input_tokens", "output_tokens", "total_tokens")
_DETAILS = {
    "input_tokens_details": ("cached_tokens", "cache_write_tokens"),
    "output_tokens_details": ("reasoning_tokens",),
}


class AgentRenderer(ResponsesRenderer):
    """Mutable. The labels of MCP servers are the namespaces of their functions, which this server runs."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._usages: list[Item] = []
        self.is_whole = True

    @property
    def items(self) -> list[Item]:
        return self._output.writer.items

    @property
    def wants_client(self) -> bool:
        """Whether the last turn called a function of the client."""
        return self._output.n_calls > 0

    @property
    def n_output(self) -> int:
        """Return the number of tokens that were generated."""
        return sum(usage["output_tokens"] for usage in self._usages)

    def begin(self, listed: list[McpAccess]) -> Events:
        events = self._begin()
        for access in listed:
            item = access.list_item(self._id("mcp_list_tools"))
            events += self._number(self._output.writer.add_whole(item))
        return events

    def begin_turn(self, parsed: ParsedResponses, prepared: PreparedChat) -> None:
        before, self._output = self._output, self._open_output(parsed, prepared)
        self._output.writer, self._output.warnings = before.writer, before.warnings

    def take_calls(self) -> list[Item]:
        """Return the calls to MCP servers of the last turn."""
        calls, self._output.hosted_calls = self._output.hosted_calls, []
        return calls if self.is_whole else []

    def ask_approval(self, call: Item) -> Events:
        item = {"id": self._id("mcp_approval_request"), "type": "mcp_approval_request", **call}
        return self._number(self._output.writer.add_whole(item))

    def begin_call(self, call: Item) -> tuple[Item, Events]:
        """Return the item of a call, and the events that report its beginning."""
        item = {
            "id": self._id("mcp_call"),
            "type": "mcp_call",
            "status": "in_progress",
            "approval_request_id": None,
            **call,
            "output": None,
            "error": None,
        }
        return item, self._number(self._output.writer.begin_whole(item))

    def end_call(self, item: Item) -> Events:
        return self._number(self._output.writer.end_whole(item))

    def finish(self) -> None:
        """End the response after its last turn."""
        status = "completed" if self.is_whole else "incomplete"
        reason = None if self.is_whole else {"reason": "max_output_tokens"}
        self._end(status, [], incomplete_details=reason, usage=_sum(self._usages))

    def _finish(self, choice: Choice, done: Done) -> Events:
        """End a turn, not the response."""
        is_whole = done.stop_type not in UNFINISHED
        events = [*self._output.feed(done.text), *self._output.finish(is_whole)]
        self.is_whole = is_whole and not self._output.is_cut
        self._usages.append(self._usage(choice, done))
        return self._number(events)

    def _id(self, type: str) -> str:
        return item_id(type, self._response["id"], len(self.items))


def _sum(usages: list[Item]) -> Item:
    total: Item = {name: sum(usage[name] for usage in usages) for name in _COUNTS}
    for group, names in _DETAILS.items():
        total[group] = {name: sum(usage[group][name] for usage in usages) for name in names}
    return total
