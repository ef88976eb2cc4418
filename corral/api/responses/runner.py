"""Run a response: one turn of the model, or several if it calls tools of MCP servers.

All turns are one response. It ends when the model calls nothing, when a call needs approval, or when it calls
a function of the client. After the last call that is allowed, the model must answer without tools.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from starlette.responses import Response

from corral.api.answer_log import AnswerLog
from corral.api.body import JsonResponse
from corral.api.followed_stream import FollowedStream
from corral.api.json_encode import PIECE_BYTES
from corral.api.respond import open_choices, place_in_queue, render_large, respond_events, respond_whole
from corral.api.responses.context import ResponseContext, parse_in_context
from corral.api.responses.item import Item
from corral.api.responses.mcp import (
    McpAccess,
    approved_calls,
    expand,
    expand_choice,
    is_mcp,
    open_access,
    run_call,
)
from corral.api.responses.parse import Placed
from corral.api.responses.render import ResponsesRenderer, render_frame
from corral.api.responses.response_store import RunningResponse
from corral.api.responses.schema import ResponsesRequest
from corral.api.sse import EventStream
from corral.api.streamed_response import send_all
from corral.core.errors import CorralError
from corral.core.result import TaskResult
from corral.generate.call import Call
from corral.generate.choice import Choice, follow
from corral.generate.choice_size import result_bytes
from corral.generate.disconnect import run_for_client
from corral.generate.error_field import renaming
from corral.generate.prepare_chat import PreparedChat, prepare_chat

_MAX_CALLS = 32  # of a response
Events = AsyncGenerator[Any]

_log = logging.getLogger("corral")


async def open_runner(call: Call[ResponsesRequest], context: ResponseContext) -> ResponseRunner:
    """Prepare the first turn, so that an invalid request is refused before anything runs."""
    sessions, access = call.services.mcp, {}
    if sessions is not None and is_mcp(call.body.tools):
        opening = open_access(call.body.tools, sessions, context.client)
        access = await run_for_client(opening, call.caller.disconnect)
    runner = ResponseRunner(call, context, access)
    await runner.prepare()
    return runner


class ResponseRunner:
    """Mutable: one response. `access`: by the label of the MCP server."""

    def __init__(
        self, call: Call[ResponsesRequest], context: ResponseContext, access: dict[str, McpAccess]
    ) -> None:
        self._call, body = call, call.body
        self._body = body
        if access:
            tools, choice = expand(body.tools, access), expand_choice(body.tool_choice)
            self._body = body.model_copy(update={"tools": tools, "tool_choice": choice})
        self._context = context
        self._access = access
        self._work = call.work if not access else None  # no record says what a tool has done
        asked = body.max_tool_calls
        self._n_left = _MAX_CALLS if asked is None else min(asked, _MAX_CALLS)
        self._approved: list[Item] = []
        self._choices: list[Choice] = []
        self._at_end = contextlib.ExitStack()
        self._is_running = True
        self._n_bytes = 0  # of the results, as large as they are rendered
        self._queued: list[dict[str, Any]] = []
        self._renderer: ResponsesRenderer

    async def prepare(self) -> None:
        prepared = await self._prepare_turn(is_first=True)
        render_context = self._call.services.model.render_context
        sampling = prepared.completion.tasks[0][0].params.sampling
        frame = render_frame(self._context.id, self._call.body, render_context.model_name, sampling)
        self._renderer = ResponsesRenderer(
            render_context, self._body, self._parsed, prepared, frame, self._context.input, self._access
        )
        self._prepared = prepared
        if self._access:
            self._approved = approved_calls(self._context.items, self._context.input)

    async def respond(self, render: Callable[[Item], Any] = lambda response: response) -> Response:
        """Answer with a stream, or with what `render` makes of the whole response."""
        call = self._call
        with renaming(self._parsed.names):
            await self._open_first_turn()
            if call.body.stream:
                ping_s = self._prepared.completion.ping_s
                return await respond_events(call, self._events(), self._renderer, self._task_ids, ping_s)
            place = place_in_queue(call, self._task_ids())
            with contextlib.closing(self._at_end):
                await run_for_client(self._run(), call.caller.disconnect)
        return await respond_whole(call, place, lambda: render(self._renderer.response), self._n_bytes)

    async def respond_in_background(self) -> Response:
        """Answer with the response as it is, or with its events; it goes on without the client and after the
        request, whose record has ended then."""
        self._call = msgspec.structs.replace(self._call, caller=self._call.caller.detached())
        context, renderer = self._context, self._renderer
        if self._work is not None:
            self._work.rename(context.id)
        with renaming(self._parsed.names):
            await self._open_first_turn()
        self._queued = renderer.queue()
        running = RunningResponse(renderer, AnswerLog(context.id, keeps_all=True))
        stream = EventStream(self._events(), format=renderer.stream_format)
        context.store.run(context.client, running, send_all(stream, running.log.send))
        context.store.keep(context.client, renderer.stored)
        return FollowedStream(running.log) if self._call.body.stream else JsonResponse(renderer.response)

    async def _run(self) -> None:
        async for _ in self._events():
            pass

    async def _events(self) -> Events:
        body, renderer = self._call.body, self._renderer
        error: CorralError | None = None
        for event in self._queued:
            yield event
        try:
            async for event in self._begin():
                yield event
            while self._is_running:
                with self._at_end:
                    async for choice, result in follow(self._choices, self._work):
                        for event in await self._render(choice, result):
                            yield event
                async for event in self._end_turn():
                    yield event
            renderer.finish()
        except CorralError as raised:
            if not (body.stream or body.background):
                raise
            error = raised
        except asyncio.CancelledError:
            if not body.background:
                raise
            for event in renderer.cancel():
                yield event
        except Exception as raised:
            if not body.background:
                raise
            _log.error("a response in the background failed", exc_info=raised)
            error = CorralError("internal error")
        for event in await self._context.end(renderer, error):
            yield event

    async def _begin(self) -> Events:
        """Say what tools there are, and run the calls that the client has approved."""
        if self._access:
            for event in self._renderer.list_tools(self._unlisted()):
                yield event
        for call in self._approved:
            async for event in self._run_call(call):
                yield event
        if self._approved:
            await self._begin_turn()

    async def _render(self, choice: Choice, result: TaskResult) -> Sequence[Any]:
        n_bytes = result_bytes(choice, result)
        self._n_bytes += n_bytes
        if n_bytes < PIECE_BYTES:
            return self._renderer.events(choice, result)
        call = self._call
        return await render_large(call.services.pools, call.client, self._renderer, choice, result)

    async def _end_turn(self) -> Events:
        """Run the calls of the turn, and begin another one unless the response ends."""
        pending = self._renderer.take_calls()
        asks = [call for call in pending if not self._is_free(call)]
        for call in pending:
            async for event in self._ask(call) if call in asks else self._run_call(call):
                yield event
        if not pending or asks or self._renderer.wants_client or self._is_spent():
            self._is_running = False
        else:
            await self._begin_turn()

    async def _begin_turn(self) -> None:
        self._prepared = await self._prepare_turn()
        self._renderer.begin_turn(self._parsed, self._prepared)
        await self._open_turn()

    async def _prepare_turn(self, is_first: bool = False) -> PreparedChat:
        body, context = self._body, self._context
        if self._access and (self._n_left <= 0 or not is_first):
            choice = "auto" if self._n_left > 0 else "none"
            body = body.model_copy(update={"tool_choice": choice})
        if not is_first:
            if body.n_predict >= 0:
                body = body.model_copy(update={"n_predict": body.n_predict - self._renderer.n_output})
            said: Placed = [(f"output[{i}]", item) for i, item in enumerate(self._renderer.items)]
            context = replace(context, items=[*context.items, *said])
        self._parsed = await parse_in_context(self._call, body, context)
        with renaming(self._parsed.names):
            return await prepare_chat(self._call, self._parsed.chat)

    async def _open_first_turn(self) -> None:
        """Submit the first turn, so that its refusal is an ordinary answer; approved calls run before it."""
        if not self._approved:
            await self._open_turn()

    async def _open_turn(self) -> None:
        call, prepared = self._call, self._prepared.completion
        self._choices, self._at_end = await open_choices(
            call.services, call.record, prepared, keeps_probs=False, work=self._work
        )

    def _task_ids(self) -> list[int]:
        return [choice.task.id for choice in self._choices]

    def _unlisted(self) -> list[McpAccess]:
        """Return the servers whose tools the conversation does not list yet."""
        items = [item for _, item in self._context.items]
        known = {item.get("server_label") for item in items if item["type"] == "mcp_list_tools"}
        return [access for label, access in self._access.items() if label not in known]

    def _is_spent(self) -> bool:
        """Return whether no tokens are left for another turn."""
        limit = self._body.n_predict
        if 0 <= limit <= self._renderer.n_output:
            self._renderer.is_whole = False
        return not self._renderer.is_whole

    def _is_free(self, call: Item) -> bool:
        return call["name"] in self._access[call["server_label"]].free

    async def _ask(self, call: Item) -> Events:
        for event in self._renderer.ask_approval(call):
            yield event

    async def _run_call(self, call: Item) -> Events:
        self._n_left -= 1
        begun, events = self._renderer.begin_call(call)
        for event in events:
            yield event
        sessions = self._call.services.mcp
        assert sessions is not None, "tools are only known from there"
        done = await run_call(sessions, self._context.client, begun)
        for event in self._renderer.end_call(done):
            yield event
