"""Responses with tools of the type `mcp`: the model is asked again with the results of its calls.

All turns are one response. It ends when the model calls nothing, when a call needs approval, or when it
calls a function of the client. After the last call that is allowed, the model must answer without tools.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from pydantic_core import from_json
from starlette.responses import Response

from corral.api.body import JsonResponse
from corral.api.call import Call
from corral.api.choice import follow
from corral.api.dialects.place import renaming
from corral.api.dialects.responses.agent_renderer import AgentRenderer
from corral.api.dialects.responses.background import start_run
from corral.api.dialects.responses.exchange import Exchange, parse_exchange
from corral.api.dialects.responses.item import Item
from corral.api.dialects.responses.mcp import McpAccess, expand, expand_choice, open_access, run_call
from corral.api.dialects.responses.parse import Placed
from corral.api.dialects.responses.render import render_frame
from corral.api.dialects.responses.run import Run
from corral.api.dialects.responses.schema import ResponsesRequest
from corral.api.disconnect import run_for_client
from corral.api.mcp.sessions import McpSessions
from corral.api.prepare_chat import PreparedChat, prepare_chat
from corral.api.respond import open_choices
from corral.api.sse import EventStream
from corral.core.errors import CorralError, InvalidRequest

_MAX_CALLS = 32  # of a response
Events = AsyncGenerator[dict[str, Any]]


async def respond_with_tools(
    call: Call[ResponsesRequest], exchange: Exchange, sessions: McpSessions
) -> Response:
    body, disconnect = call.body, call.caller.disconnect
    access = await run_for_client(open_access(body.tools, sessions, exchange.client), disconnect)
    agent = _Agent(call, exchange, sessions, access)
    await agent.prepare()
    if body.background:
        agent.detach()
        return start_run(
            exchange, Run(agent.renderer, agent.run(), partial(exchange.end, agent.renderer)), body.stream
        )
    if body.stream:
        ping_s = call.services.settings.server.sse_ping_s
        events = _run_to_end(exchange, agent)
        return EventStream(events, format=agent.renderer.stream_format, ping_s=ping_s)
    await run_for_client(_exhaust(agent.run()), disconnect)
    await exchange.end(agent.renderer, None)
    return JsonResponse(agent.renderer.response)


async def _run_to_end(exchange: Exchange, agent: _Agent) -> Events:
    error = None
    try:
        async with contextlib.aclosing(agent.run()) as events:
            async for event in events:
                yield event
    except CorralError as raised:
        error = raised
    for event in await exchange.end(agent.renderer, error):
        yield event


async def _exhaust(events: Events) -> None:
    async for _ in events:
        pass


class _Agent:
    """Mutable: one response."""

    def __init__(
        self,
        call: Call[ResponsesRequest],
        exchange: Exchange,
        sessions: McpSessions,
        access: dict[str, McpAccess],
    ) -> None:
        self._call, body = call, call.body
        self._body = body.model_copy(
            update={"tools": expand(body.tools, access), "tool_choice": expand_choice(body.tool_choice)}
        )
        self._given = body
        self._exchange = exchange
        self._sessions = sessions
        self._access = access
        asked = body.max_tool_calls
        self._n_left = _MAX_CALLS if asked is None else min(asked, _MAX_CALLS)
        self.renderer: AgentRenderer

    async def prepare(self) -> None:
        """Prepare the first turn, so that an invalid request is refused before the stream begins."""
        prepared = await self._prepare_turn(is_first=True)
        context = self._call.services.model.render_context
        sampling = prepared.completion.tasks[0][0].params.sampling
        frame = render_frame(self._exchange.id, self._given, context.model_name, sampling)
        self.renderer = AgentRenderer(
            context,
            self._body,
            self._parsed,
            prepared,
            frame,
            self._exchange.input,
            hosted=self._access,
        )
        self._prepared = prepared

    def detach(self) -> None:
        """Go on without the client and after its request, whose record has ended then."""
        self._call = msgspec.structs.replace(self._call, caller=self._call.caller.detached())

    async def run(self) -> Events:
        for event in self.renderer.begin(self._listed()):
            yield event
        approved = _approved(self._exchange)
        for call in approved:
            async for event in self._run_call(call):
                yield event
        if approved:
            await self._begin_turn()
        while True:
            async for event in self._run_turn():
                yield event
            pending = self.renderer.take_calls()
            asks = [call for call in pending if not self._is_free(call)]
            for call in pending:
                async for event in self._ask(call) if call in asks else self._run_call(call):
                    yield event
            if not pending or asks or self.renderer.wants_client or self._is_spent():
                break
            await self._begin_turn()
        self.renderer.finish()

    async def _begin_turn(self) -> None:
        self._prepared = await self._prepare_turn()
        self.renderer.begin_turn(self._parsed, self._prepared)

    async def _prepare_turn(self, is_first: bool = False) -> PreparedChat:
        body, exchange = self._body, self._exchange
        if self._n_left <= 0 or not is_first:
            choice = "auto" if self._n_left > 0 else "none"
            body = body.model_copy(update={"tool_choice": choice})
        if not is_first:
            if body.n_predict >= 0:
                body = body.model_copy(update={"n_predict": body.n_predict - self.renderer.n_output})
            said: Placed = [(f"output[{i}]", item) for i, item in enumerate(self.renderer.items)]
            exchange = replace(exchange, items=[*exchange.items, *said])
        self._parsed = await parse_exchange(self._call, body, exchange)
        with renaming(self._parsed.names):
            return await prepare_chat(self._call, self._parsed.chat)

    async def _run_turn(self) -> Events:
        call, prepared = self._call, self._prepared.completion
        choices, at_end = await open_choices(call.services, call.record, prepared)
        with at_end:
            async for choice, result in follow(choices):
                for event in self.renderer.events(choice, result):
                    yield event

    def _listed(self) -> list[McpAccess]:
        """Return the servers whose tools the conversation does not list yet."""
        items = [item for _, item in self._exchange.items]
        known = {item.get("server_label") for item in items if item["type"] == "mcp_list_tools"}
        return [access for label, access in self._access.items() if label not in known]

    def _is_spent(self) -> bool:
        """Return whether no tokens are left for another turn."""
        limit = self._body.n_predict
        if 0 <= limit <= self.renderer.n_output:
            self.renderer.is_whole = False
        return not self.renderer.is_whole

    def _is_free(self, call: Item) -> bool:
        return call["name"] in self._access[call["server_label"]].free

    async def _ask(self, call: Item) -> Events:
        for event in self.renderer.ask_approval(call):
            yield event

    async def _run_call(self, call: Item) -> Events:
        self._n_left -= 1
        begun, events = self.renderer.begin_call(call)
        for event in events:
            yield event
        arguments = _arguments(call["arguments"])
        done = await run_call(self._sessions, self._exchange.client, begun, arguments)
        for event in self.renderer.end_call(done):
            yield event


def _approved(exchange: Exchange) -> list[Item]:
    """Return the calls that the new items approve."""
    asked = {item["id"]: item for _, item in exchange.items if item["type"] == "mcp_approval_request"}
    found = []
    for i, item in enumerate(exchange.input):
        if item["type"] != "mcp_approval_response":
            continue
        request = asked.get(item.get("approval_request_id"))
        if request is None:
            raise InvalidRequest("names no request", field=f"input[{i}].approval_request_id")
        if item.get("approve") is True:
            fields = {name: request.get(name) for name in ("server_label", "name", "arguments")}
            found.append({**fields, "approval_request_id": request["id"]})
    return found


def _arguments(text: Any) -> Any:
    try:
        return from_json(text or "{}")
    except (ValueError, TypeError):
        return None
