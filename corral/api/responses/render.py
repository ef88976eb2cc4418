"""Render results as a response with items: whole, or as stream events."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from functools import partial
from typing import Any

from corral.api.render import native
from corral.api.render.state import render_cache_report
from corral.api.responses.error import render_event, render_failure
from corral.api.responses.item import Item, item_id
from corral.api.responses.mcp import McpAccess
from corral.api.responses.output import Output
from corral.api.responses.parse import ENCRYPTED, ParsedResponses, wants_logprobs
from corral.api.responses.schema import ResponsesRequest
from corral.api.responses.stored import StoredResponse, last_event, opening_event, opening_events
from corral.api.shared.named_event import named_events
from corral.core.answer_id import now
from corral.core.errors import CorralError
from corral.core.params import SamplingParams
from corral.core.result import UNFINISHED, Admitted, Done, Progress, TaskResult, TokenProbs, Tokens
from corral.generate.choice import Choice
from corral.generate.model import RenderContext
from corral.generate.prepare_chat import PreparedChat

Events = list[dict[str, Any]]


class ResponsesRenderer:
    """Mutable: one response. `events` renders the results of its turns, `finish` ends it after the last one,
    and `end` returns the event with which its stream ends.

    The labels of MCP servers are namespaces of functions, which this server runs. `is_whole`: no turn was cut
    off.
    """

    last = b""
    stream_format = named_events(partial(render_event, sequence_number=0))

    def __init__(
        self,
        context: RenderContext,
        body: ResponsesRequest,
        parsed: ParsedResponses,
        prepared: PreparedChat,
        frame: Item,
        input: list[Item],
        hosted: Collection[str] = (),
    ) -> None:
        """`hosted`: the labels of MCP servers."""
        self._context = context
        self._n_top = (body.top_logprobs or 0) if wants_logprobs(body) else None
        self._reports_progress, self._reports_timings = body.return_progress, body.timings_per_token
        self._warnings = list(prepared.completion.warnings)
        self._input = input
        self._response = frame
        self._seals, self._hosted = ENCRYPTED in body.include, hosted
        self._output = self._open_output(parsed, prepared)
        self._is_begun = False
        self._n_events = 0
        self._repeated: list[int] = []  # numbers that reports of progress have, too
        self.is_whole = True
        self._usages: list[Item] = []  # of the turns
        self._remarks: tuple[dict[str, Any], dict[str, Any]] = {}, {}  # of the last turn
        self._at_end: dict[str, Any] = {}  # in the last event beside the response

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

    @property
    def stored(self) -> StoredResponse:
        """Return the response so far, in the form that is stored."""
        writer = self._output.writer
        response = {**self._response, "output": writer.snapshot}
        return StoredResponse(response, self._input, writer.cuts, self._is_begun)

    @property
    def response(self) -> Item:
        return self.stored.response

    def n_before(self, number: int) -> int:
        """Return how many events were sent before the one with this number."""
        return number + bisect_left(self._repeated, number)

    def queue(self) -> Events:
        """Return the first events of a response that runs in the background."""
        self._response["status"] = "queued"
        return self._number(opening_events(self._response, is_queued=True))

    def events(self, choice: Choice, result: TaskResult) -> Events:
        if isinstance(result, Admitted | Progress):
            return [*self._begin(), *self._progress(choice, result)]
        if isinstance(result, Tokens):
            logprobs = self._render_probs(result.probs, choice.task.params.sampling)
            fed = self._output.feed(result.text, len(result.tokens), logprobs)
            if fed and self._reports_timings:
                fed[-1] = {**fed[-1], "timings": native.render_timings(result.timings)}
            return [*self._begin(), *self._number(fed)]
        if isinstance(result, Done):
            return [*self._begin(), *self._end_turn(choice, result)]
        return []

    def list_tools(self, listed: list[McpAccess]) -> Events:
        """Begin the response with the tools of MCP servers."""
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
        reason = None if self.is_whole else {"reason": "max_output_tokens"}
        unmet, report = self._remarks
        self._end(
            "completed" if self.is_whole else "incomplete",
            [],
            incomplete_details=reason,
            **unmet,
            usage=_sum(self._usages),
            **report,
        )

    def fail(self, error: CorralError) -> Events:
        """End the response with an error, which is raised if nothing was sent yet."""
        if not self._n_events:
            raise error
        return self._end("failed", self._output.stop(), error=render_failure(error))

    def cancel(self) -> Events:
        return self._end("cancelled", self._output.stop())

    def end(self, lost: str = "", is_stored: bool = True) -> Events:
        """Return the event that ends the stream. `lost`: why the response will not survive this server, or
        this request if it is not stored."""
        if lost:
            self._response["warnings"] = [*self._response.get("warnings", ()), lost]
        if not is_stored:
            self._response["store"] = False
        return [{**event, **self._at_end} for event in self._number([last_event(self.response)])]

    def _open_output(self, parsed: ParsedResponses, prepared: PreparedChat) -> Output:
        parser = prepared.chat_format.parser(prepared.chat, prepared.prompt)
        return Output(parser, self._response["id"], parsed.tools, self._seals, self._hosted)

    def _begin(self) -> Events:
        """Return the opening events that were not sent yet."""
        if self._is_begun:
            return []
        self._is_begun = True
        self._response["status"] = "in_progress"
        if self._n_events:
            return self._number([opening_event(self._response, "in_progress")])
        return self._number(opening_events(self._response, is_queued=False))

    def _progress(self, choice: Choice, result: Admitted | Progress) -> Events:
        """Repeat the last number: a stored response is sent again without progress, numbered the same."""
        if not self._reports_progress:
            return []
        progress = native.render_prompt_progress(choice, result, self._reports_timings)
        self._repeated.append(self._n_events - 1)
        event = {**opening_event(self._response, "in_progress"), "sequence_number": self._n_events - 1}
        return [{**event, **progress}]

    def _end_turn(self, choice: Choice, done: Done) -> Events:
        is_whole = done.stop_type not in UNFINISHED
        events = [*self._output.feed(done.text), *self._output.finish(is_whole)]
        self.is_whole = is_whole and not self._output.is_cut
        self._usages.append(self._usage(choice, done))
        self._remarks = native.render_unmet(done), render_cache_report(choice, self._context)
        if self._reports_timings:
            self._at_end = {"timings": native.render_timings(done.timings)}
        return self._number(events)

    def _id(self, type: str) -> str:
        return item_id(type, self._response["id"], len(self.items))

    def _end(self, status: str, events: Events, **fields: Any) -> Events:
        self._response |= {"status": status, "completed_at": now(), **fields}
        if warnings := [*self._warnings, *self._output.warnings]:
            self._response["warnings"] = warnings
        return self._number(events)

    def _number(self, events: Events) -> Events:
        numbered = [{**event, "sequence_number": self._n_events + i} for i, event in enumerate(events)]
        self._n_events += len(events)
        return numbered

    def _render_probs(self, probs: list[TokenProbs], sampling: SamplingParams) -> list[Any]:
        if self._n_top is None:
            return []
        shown = [TokenProbs(each.chosen, each.top[: self._n_top]) for each in probs]
        return list(native.render_probs(shown, sampling, self._context.piece))

    def _usage(self, choice: Choice, done: Done) -> dict[str, Any]:
        """Render the token counts. Every prompt is cached: what was not in the cache is written to it."""
        n_prompt, timings = len(choice.task.prompt), done.timings
        return {
            "input_tokens": n_prompt,
            "input_tokens_details": {
                "cached_tokens": timings.cache_n,
                "cache_write_tokens": n_prompt - timings.cache_n,
            },
            "output_tokens": timings.predicted_n,
            "output_tokens_details": {"reasoning_tokens": self._output.n_reasoning},
            "total_tokens": n_prompt + timings.predicted_n,
        }


def _sum(usages: list[Item]) -> Item:
    """Add token counts, also those inside."""
    return {
        name: _sum([usage[name] for usage in usages])
        if isinstance(value, dict)
        else sum(usage[name] for usage in usages)
        for name, value in usages[0].items()
    }


def render_frame(id: str, body: ResponsesRequest, model: str, sampling: SamplingParams) -> Item:
    """Return the response before it has output: the settings of the request."""
    return {
        "id": id,
        "object": "response",
        "created_at": now(),
        "completed_at": None,
        "status": "in_progress",
        "background": body.background,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.n_predict if body.n_predict >= 0 else None,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata,
        "model": body.model or model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls,
        "previous_response_id": body.previous_response_id,
        "conversation": _render_conversation(body),
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": _render_reasoning(body),
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",  # the tier that was used, whichever was asked for
        "store": body.store,
        "temperature": sampling.temperature,
        "text": _render_text(body),
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "tools": body.tools or [],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": sampling.top_p,
        "truncation": body.truncation,
        "usage": None,
        "user": body.user or None,
    }


def _render_conversation(body: ResponsesRequest) -> Item | None:
    given = body.conversation
    return None if given is None else {"id": given if isinstance(given, str) else given.id}


def _render_reasoning(body: ResponsesRequest) -> Item:
    given = body.reasoning
    effort, summary = (given.effort, given.summary) if given is not None else (None, None)
    return {"effort": effort, "summary": summary}


def _render_text(body: ResponsesRequest) -> Item:
    format = body.text.format if body.text is not None else None
    shown = {"type": "text"} if format is None else format.model_dump(by_alias=True, exclude_unset=True)
    return {"format": shown, **({"verbosity": body.text.verbosity} if body.text is not None else {})}
