"""Render chat completions in OpenAI's format, whole and as deltas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from corral.api.openai.answer import OpenAIAnswer
from corral.api.render import native
from corral.api.render.warning import describe_diagnosis, render_warnings
from corral.chat.event import CallArguments, CallBroken, CallStarted, Content, Diagnosis, Event, Reasoning
from corral.core.result import UNFINISHED, Admitted, Done, Progress, TaskResult, TokenProbs, Tokens
from corral.core.top_probs import TopProbs

if TYPE_CHECKING:
    from corral.generate.choice import Choice
    from corral.generate.model import RenderContext
    from corral.generate.prepare_chat import PreparedChat
    from corral.schema.chat import ChatRequest


class ChatRenderer(OpenAIAnswer):
    """Renders the answers to one request."""

    def __init__(self, context: RenderContext, body: ChatRequest, prepared: PreparedChat) -> None:
        super().__init__(context, body, "chatcmpl", f"chat.completion{'.chunk' * body.stream}")
        self._body = body
        self._prepared = prepared
        self._messages: dict[int, _Message] = {}

    def events(self, choice: Choice, result: TaskResult) -> list[dict[str, Any]]:
        if isinstance(result, Tokens):
            return self._token_events(choice, result)
        if isinstance(result, Admitted | Progress) and self._body.return_progress:
            return [self._progress_event(choice, result)]
        return self._last_events(choice, result) if isinstance(result, Done) else []

    def answer(self, choices: list[Choice]) -> dict[str, Any]:
        answer = self._whole(choices, [self._render(choice) for choice in choices])
        return answer | self._render_warnings(self._messages[choice.index] for choice in choices)

    def _render(self, choice: Choice) -> dict[str, Any]:
        message = self._message(choice)
        message.feed(choice.text)
        message.finish()
        answer: dict[str, Any] = {
            "index": choice.index,
            "message": message.render(),
            "logprobs": self._logprobs(choice, choice.probs),
            "finish_reason": message.finish_reason(choice.ended),
        }
        return answer | native.render_unmet(choice.ended)

    def _token_events(self, choice: Choice, result: Tokens) -> list[dict[str, Any]]:
        deltas = self._message(choice).feed(result.text)
        logprobs = self._logprobs(choice, result.probs)
        if logprobs and not deltas:
            deltas = [{}]
        events = [self._chunk(choice, delta) for delta in deltas]
        if events:
            events[-1]["choices"][0]["logprobs"] = logprobs
            if self._body.timings_per_token:
                events[-1]["timings"] = native.render_timings(result.timings)
        return self._opening(choice) + events

    def _progress_event(self, choice: Choice, result: Admitted | Progress) -> dict[str, Any]:
        delta = {"role": "assistant", "content": None} if not self._message(choice).is_begun else {}
        progress = native.render_prompt_progress(choice, result, self._body.timings_per_token)
        return {**self._chunk(choice, delta), **progress}

    def _last_events(self, choice: Choice, done: Done) -> list[dict[str, Any]]:
        message = self._message(choice)
        deltas = [*message.feed(done.text), *message.finish()]
        last = self._chunk(choice, {}, message.finish_reason(done))
        last["choices"][0] |= native.render_unmet(choice.ended)
        events = [*self._opening(choice), *(self._chunk(choice, delta) for delta in deltas), last]
        events += self._usage_events(choice)
        events[-1] |= {**self._render_facts(choice), **self._render_warnings([message])}
        events[0] |= self._render_verbose(choice)
        return events

    def _opening(self, choice: Choice) -> list[dict[str, Any]]:
        message = self._message(choice)
        if message.is_begun:
            return []
        message.is_begun = True
        return [self._chunk(choice, {"role": "assistant", "content": None})]

    def _chunk(self, choice: Choice, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return {**self._frame, "choices": [{"index": choice.index, "delta": delta, "finish_reason": reason}]}

    def _message(self, choice: Choice) -> _Message:
        message = self._messages.get(choice.index)
        if message is None:
            message = self._messages[choice.index] = _Message(self._prepared)
        return message

    def _logprobs(self, choice: Choice, probs: list[TokenProbs]) -> dict[str, Any] | None:
        if not probs:
            return None
        if self._body.top_logprobs == 0:
            probs = [TokenProbs(p.chosen, TopProbs()) for p in probs]
        return {"content": native.render_probs(probs, choice.task.params.sampling, self._context.piece)}

    def _render_warnings(self, messages: Any) -> dict[str, Any]:
        warnings = [
            *self._prepared.completion.warnings,
            *(w for message in messages for w in message.warnings),
        ]
        return render_warnings(warnings)


class _Message:
    """Mutable: an answer as it grows, with the deltas of every step."""

    def __init__(self, prepared: PreparedChat) -> None:
        self._parser = prepared.chat_format.parser(prepared.chat, prepared.prompt)
        self._is_legacy = prepared.is_legacy
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self.warnings: list[str] = []
        self.is_begun = False

    def feed(self, text: str) -> list[dict[str, Any]]:
        return self._apply(self._parser.feed(text))

    def finish(self) -> list[dict[str, Any]]:
        return self._apply(self._parser.finish())

    def finish_reason(self, done: Done) -> str:
        if done.stop_type in UNFINISHED:
            return "length"
        return "tool_calls" if self._calls else "stop"

    def render(self) -> dict[str, Any]:
        content = "".join(self._content)
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            calls = [_render_call(call) for call in self._calls.values()]
            message |= {"content": content or None, "tool_calls": calls}
            if self._is_legacy:
                message["function_call"] = calls[0]["function"]
        return message

    def _apply(self, events: list[Event]) -> list[dict[str, Any]]:
        return [delta for event in events if (delta := self._apply_one(event))]

    def _apply_one(self, event: Event) -> dict[str, Any] | None:
        if isinstance(event, Content):
            self._content.append(event.text)
            return {"content": event.text}
        if isinstance(event, Reasoning):
            self._reasoning.append(event.text)
            return {"reasoning_content": event.text}
        if isinstance(event, CallStarted):
            self._calls[event.index] = {"id": event.id, "name": event.name, "arguments": []}
            return self._call_delta(event.index, event.id, name=event.name, arguments="")
        if isinstance(event, CallArguments):
            self._calls[event.index]["arguments"].append(event.text)
            return self._call_delta(event.index, arguments=event.text)
        if isinstance(event, CallBroken):
            del self._calls[event.index]
        if isinstance(event, Diagnosis):
            self.warnings.append(describe_diagnosis(event))
        return None

    def _call_delta(self, index: int, id: str = "", **function: str) -> dict[str, Any]:
        head = {"index": index, "id": id, "type": "function"} if id else {"index": index}
        delta: dict[str, Any] = {"tool_calls": [{**head, "function": function}]}
        return {**delta, "function_call": function} if self._is_legacy and not index else delta


def _render_call(call: dict[str, Any]) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": "".join(call["arguments"])}
    return {"type": "function", "function": function, "id": call["id"]}
