"""Render results as messages with content blocks: whole, or as stream events."""

from __future__ import annotations

import time
from typing import Any

from corral.api.anthropic.billing import BILLING_HEADER
from corral.api.anthropic.block import CACHE_TTLS
from corral.api.anthropic.content import AnswerContent
from corral.api.anthropic.error import render_error
from corral.api.anthropic.parse import ParsedMessages
from corral.api.anthropic.schema import MessagesRequest
from corral.api.render.native import render_unmet
from corral.api.render.state import render_cache_report
from corral.api.render.warning import render_warnings
from corral.api.shared.named_event import named_events
from corral.core.answer_id import draw_hex
from corral.core.result import UNFINISHED, Admitted, Done, Progress, StopType, TaskResult, Tokens
from corral.generate.choice import Choice
from corral.generate.model import RenderContext
from corral.generate.prepare_chat import PreparedChat

PING_S = 5.0  # between two signs of life while a prompt is evaluated
_PING = {"type": "ping"}


class MessagesRenderer:
    """Renders the answer to one request."""

    answer_id = ""
    last = b""
    stream_format = named_events(render_error)

    def __init__(
        self, context: RenderContext, body: MessagesRequest, parsed: ParsedMessages, prepared: PreparedChat
    ) -> None:
        self._context = context
        self._parsed = parsed
        self._warnings = prepared.completion.warnings
        self._stop_sequences = [body.stop] if isinstance(body.stop, str) else body.stop
        shows_reasoning = body.thinking is None or body.thinking.display != "omitted"
        parser = prepared.chat_format.parser(prepared.chat, prepared.prompt)
        self._content = AnswerContent(parser, shows_reasoning)
        self._is_begun = False
        self._pinged_at = 0.0
        self._frame = {
            "id": f"msg_{draw_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": body.model or context.model_name,
        }

    @property
    def id(self) -> str:
        return self._frame["id"]

    def events(self, choice: Choice, result: TaskResult) -> list[dict[str, Any]]:
        if isinstance(result, Admitted):
            return self._opening(choice)
        if isinstance(result, Progress):
            return self._ping()
        if isinstance(result, Tokens):
            return [*self._opening(choice), *self._content.feed(result.text, len(result.tokens))]
        return self._last_events(choice, result) if isinstance(result, Done) else []

    def answer(self, choices: list[Choice]) -> dict[str, Any]:
        (choice,) = choices
        for text, (n_tokens, _) in zip(choice.texts, choice.steps, strict=False):  # as a stream gets it
            self._content.feed(text, n_tokens)
        self._content.feed(choice.ended.text)
        self._content.finish()
        return {
            **self._frame,
            "content": self._content.blocks,
            **self._end(choice),
            "usage": {**self._usage(choice, choice.ended.timings.predicted_n), **self._cache_usage(choice)},
            **self._remarks(choice),
        }

    def _opening(self, choice: Choice) -> list[dict[str, Any]]:
        if self._is_begun:
            return []
        self._is_begun = True
        self._pinged_at = time.monotonic()
        message: dict[str, Any] = {**self._frame, "content": [], "stop_reason": None, "stop_sequence": None}
        message["usage"] = {**self._usage(choice, 0), **self._cache_usage(choice)}
        return [{"type": "message_start", "message": message}, _PING]

    def _ping(self) -> list[dict[str, Any]]:
        now = time.monotonic()
        if now - self._pinged_at < PING_S:
            return []
        self._pinged_at = now
        return [_PING]

    def _last_events(self, choice: Choice, done: Done) -> list[dict[str, Any]]:
        events = [*self._opening(choice), *self._content.feed(done.text), *self._content.finish()]
        usage = self._usage(choice, done.timings.predicted_n)
        delta = {"type": "message_delta", "delta": self._end(choice), "usage": usage, **self._remarks(choice)}
        return [*events, delta, {"type": "message_stop"}]

    def _end(self, choice: Choice) -> dict[str, str | None]:
        done = choice.ended
        if done.stop_type is StopType.WORD and done.stopping_word in self._stop_sequences:
            return {"stop_reason": "stop_sequence", "stop_sequence": done.stopping_word}
        return {"stop_reason": self._stop_reason(choice, done), "stop_sequence": None}

    def _stop_reason(self, choice: Choice, done: Done) -> str:
        if done.stop_type in UNFINISHED:
            n_predict = choice.task.params.n_predict
            is_short = n_predict < 0 or done.timings.predicted_n < n_predict
            is_full = done.stop_type is StopType.LIMIT and done.truncated and is_short
            return "model_context_window_exceeded" if is_full else "max_tokens"
        if self._content.is_cut:
            return "max_tokens"  # what is there of the call must not be taken for all of it
        return "tool_use" if self._content.has_calls else "end_turn"

    def _usage(self, choice: Choice, n_generated: int) -> dict[str, Any]:
        """Render the token counts. Prompts count as written to the cache if the client asked for caching."""
        n_written = self._n_written(choice)
        return {
            "input_tokens": len(choice.task.prompt) - choice.n_cached - n_written,
            "cache_creation_input_tokens": n_written,
            "cache_read_input_tokens": choice.n_cached,
            "output_tokens": n_generated,
            "output_tokens_details": {"thinking_tokens": self._content.n_thinking},
        }

    def _cache_usage(self, choice: Choice) -> dict[str, Any]:
        """Render what only a whole message has: how long prompts are to be cached, and the tier."""
        written = {ttl: self._n_written(choice) if ttl == self._parsed.cache_ttl else 0 for ttl in CACHE_TTLS}
        creation = {f"ephemeral_{ttl}_input_tokens": n for ttl, n in written.items()}
        return {"cache_creation": creation, "service_tier": "standard"}

    def _n_written(self, choice: Choice) -> int:
        return len(choice.task.prompt) - choice.n_cached if self._parsed.cache_ttl is not None else 0

    def _remarks(self, choice: Choice) -> dict[str, Any]:
        remarks: dict[str, Any] = render_cache_report(choice, self._context)
        if remarks and self._parsed.is_masked:
            remarks["cache_report"]["masked"] = [BILLING_HEADER]
        warnings = render_warnings([*self._warnings, *self._content.warnings])
        return {**render_unmet(choice.ended), **remarks, **warnings}
