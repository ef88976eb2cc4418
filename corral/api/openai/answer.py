"""Common parts of responses in OpenAI's format: the envelope, usage, timings and the native response."""

from __future__ import annotations

from typing import Any

from corral import __version__
from corral.api.render import native
from corral.api.render.parser_settings import render_parser_settings
from corral.api.render.state import render_cache_report
from corral.api.sse import SSE
from corral.core.answer_id import draw_hex, now
from corral.core.libllama import BUILD_INFO
from corral.generate.choice import Choice
from corral.generate.model import RenderContext
from corral.schema.openai import OpenAIFields


class OpenAIAnswer:
    """Mutable: counts the tokens of a request's choices. A prompt with several answers counts once."""

    last = b"data: [DONE]\n\n"
    stream_format = SSE

    def __init__(self, context: RenderContext, body: OpenAIFields, prefix: str, kind: str) -> None:
        self._context = context
        self._is_verbose = context.is_verbose if body.verbose is None else body.verbose
        self._fields = body
        self._n_prompt = self._n_cached = self._n_generated = 0
        self.answer_id = f"{prefix}-{draw_hex(16)}"
        self._frame = {
            "id": self.answer_id,
            "object": kind,
            "created": now(),
            "model": body.model or context.model_name,
            "system_fingerprint": f"{BUILD_INFO}-corral-{__version__}",
        }

    def _whole(self, choices: list[Choice], rendered: list[dict[str, Any]]) -> dict[str, Any]:
        for choice in choices:
            self._count(choice)
        return {
            **self._frame,
            "choices": rendered,
            "usage": self._render_usage(),
            **self._render_facts(choices[0]),
            **self._render_verbose(choices[0]),
        }

    def _usage_events(self, choice: Choice) -> list[dict[str, Any]]:
        """Render the usage event at the end of a stream, if the client asks for it."""
        self._count(choice)
        if not (self._fields.stream_options.include_usage and choice.is_last):
            return []
        return [{**self._frame, "choices": [], "usage": self._render_usage()}]

    def _render_facts(self, choice: Choice) -> dict[str, Any]:
        timings = native.render_timings(choice.ended.timings)
        return {"timings": timings, **render_cache_report(choice, self._context)}

    def _render_verbose(self, choice: Choice) -> dict[str, Any]:
        """Render the native response, if the client or the server asks for it."""
        if not self._is_verbose:
            return {}
        fields, params = self._fields, choice.task.params
        answer = native.render_done(choice, choice.text, choice.tokens, choice.ended)
        settings = native.render_generation_settings(params, fields.stream, fields.timings_per_token)
        prompt = self._context.vocab.detokenize(choice.task.own_prompt)
        verbose = {**answer, "model": self._context.model_name, "prompt": prompt}
        settings |= render_parser_settings(params)
        return {"__verbose": {**verbose, "generation_settings": settings}}

    def _count(self, choice: Choice) -> None:
        timings = choice.ended.timings
        self._n_generated += timings.predicted_n
        if choice.is_first:
            self._n_prompt += len(choice.task.prompt)
            self._n_cached += min(timings.cache_n, len(choice.task.prompt))

    def _render_usage(self) -> dict[str, Any]:
        return {
            "completion_tokens": self._n_generated,
            "prompt_tokens": self._n_prompt,
            "total_tokens": self._n_prompt + self._n_generated,
            "prompt_tokens_details": {"cached_tokens": self._n_cached},
        }
