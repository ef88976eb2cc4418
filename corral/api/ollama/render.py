"""Render results in ollama's format: whole, or as lines of JSON. Durations are in nanoseconds."""

from __future__ import annotations

import time
from typing import Any

from corral.api.json_encode import encode_json
from corral.api.ollama.error import render_error
from corral.api.render import native
from corral.api.render.warning import describe_diagnosis, render_warnings
from corral.api.shared.timestamp import timestamp
from corral.api.sse import Comment, StreamFormat
from corral.chat.event import CallArguments, CallBroken, CallStarted, Content, Diagnosis, Event, Reasoning
from corral.chat.message import arguments_of
from corral.core.result import UNFINISHED, Done, TaskResult, TokenProbs, Tokens
from corral.generate.choice import Choice
from corral.generate.model import RenderContext
from corral.generate.prepare import PreparedCompletion
from corral.generate.prepare_chat import PreparedChat

MEDIA_TYPE = "application/x-ndjson"


def encode_line(event: Any) -> bytes:
    """Encode a line; this format has no comments."""
    return b"" if isinstance(event, Comment) else encode_json(event) + b"\n"


LINES = StreamFormat(MEDIA_TYPE, encode_line, render_error)


class OllamaRenderer:
    """Renders the answer to one request. `is_chat`: as a message; else as text, for `/api/generate`."""

    answer_id = ""
    last = b""
    stream_format = LINES

    def __init__(
        self,
        context: RenderContext,
        model: str,
        prepared: PreparedCompletion,
        chat: PreparedChat | None,
        is_chat: bool,
        n_top: int | None,
    ) -> None:
        self._context = context
        self._model = model or context.model_name
        self._warnings = prepared.warnings
        self._text = _ChatText(chat) if chat is not None else _PlainText()
        self._is_chat = is_chat
        self._n_top = n_top  # None: no probabilities
        self._started_ns = time.perf_counter_ns()

    def events(self, choice: Choice, result: TaskResult) -> list[dict[str, Any]]:
        if isinstance(result, Tokens):
            pieces = self._text.feed(result.text)
            logprobs = self._logprobs(choice, result.probs)
            if logprobs and not pieces:
                pieces = [{}]
            lines = [self._line(piece) for piece in pieces]
            if lines:
                lines[-1] |= logprobs
            return lines
        if not isinstance(result, Done):
            return []
        pieces = [*self._text.feed(result.text), *self._text.finish()]
        return [*(self._line(piece) for piece in pieces), {**self._line({}), **self._end(choice)}]

    def answer(self, choices: list[Choice]) -> dict[str, Any]:
        (choice,) = choices
        joined: dict[str, Any] = {}
        for piece in [*self._text.feed(choice.text), *self._text.finish()]:
            for name, value in piece.items():
                joined[name] = joined[name] + value if name in joined else value
        return {**self._line(joined), **self._logprobs(choice, choice.probs), **self._end(choice)}

    def _line(self, piece: dict[str, Any]) -> dict[str, Any]:
        frame: dict[str, Any] = {"model": self._model, "created_at": timestamp(time.time()), "done": False}
        rest = {name: value for name, value in piece.items() if name != "content"}
        content = piece.get("content", "")
        if self._is_chat:
            return {**frame, "message": {"role": "assistant", "content": content, **rest}}
        return {**frame, "response": content, **rest}

    def _end(self, choice: Choice) -> dict[str, Any]:
        done = choice.ended
        timings = done.timings
        return {
            "done": True,
            "done_reason": "length" if done.stop_type in UNFINISHED else "stop",
            "total_duration": time.perf_counter_ns() - self._started_ns,
            "load_duration": 0,
            "prompt_eval_count": len(choice.task.prompt),
            "prompt_eval_duration": round(timings.prompt_ms * 1e6),
            "eval_count": timings.predicted_n,
            "eval_duration": round(timings.predicted_ms * 1e6),
            **native.render_unmet(done),
            **render_warnings([*self._warnings, *self._text.warnings]),
        }

    def _logprobs(self, choice: Choice, probs: list[TokenProbs]) -> dict[str, Any]:
        if self._n_top is None or not probs:
            return {}
        shown = [TokenProbs(p.chosen, p.top[: self._n_top]) for p in probs]
        return {"logprobs": native.render_probs(shown, choice.task.params.sampling, self._context.piece)}


class _PlainText:
    """Text that is generated without a template."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def feed(self, text: str) -> list[dict[str, Any]]:
        return [{"content": text}] if text else []

    def finish(self) -> list[dict[str, Any]]:
        return []


class _ChatText(_PlainText):
    """Mutable: the message of a chat as it grows. A call appears when it is whole."""

    def __init__(self, prepared: PreparedChat) -> None:
        super().__init__()
        self._parser = prepared.chat_format.parser(prepared.chat, prepared.prompt)
        self._call: tuple[str, list[str]] | None = None

    def feed(self, text: str) -> list[dict[str, Any]]:
        return [piece for event in self._parser.feed(text) for piece in self._apply(event)]

    def finish(self) -> list[dict[str, Any]]:
        pieces = [piece for event in self._parser.finish() for piece in self._apply(event)]
        return [*pieces, *self._take_call()]

    def _apply(self, event: Event) -> list[dict[str, Any]]:
        if isinstance(event, CallArguments):
            assert self._call is not None
            self._call[1].append(event.text)
            return []
        if isinstance(event, CallBroken):
            self._call = None
            return []
        taken = self._take_call()
        if isinstance(event, CallStarted):
            self._call = event.name, []
        elif isinstance(event, Content):
            taken.append({"content": event.text})
        elif isinstance(event, Reasoning):
            taken.append({"thinking": event.text})
        elif isinstance(event, Diagnosis):
            self.warnings.append(describe_diagnosis(event))
        return taken

    def _take_call(self) -> list[dict[str, Any]]:
        if self._call is None:
            return []
        (name, parts), self._call = self._call, None
        arguments = arguments_of({"function": {"arguments": "".join(parts) or "{}"}})
        return [{"tool_calls": [{"function": {"name": name, "arguments": arguments}}]}]
