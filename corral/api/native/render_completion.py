"""Render answers in llama-server's own dialect."""

from __future__ import annotations

from typing import Any

from corral.api.render import native
from corral.api.render.parser_settings import render_parser_settings
from corral.api.render.state import render_cache_report
from corral.api.render.warning import render_warnings
from corral.api.sse import SSE
from corral.core.result import Admitted, Done, Progress, TaskResult, Tokens
from corral.generate.choice import Choice
from corral.generate.model import RenderContext
from corral.generate.prepare import PreparedCompletion
from corral.schema.completion import GenerationFields


class NativeRenderer:
    """llama-server's own dialect."""

    answer_id = ""
    last = b""
    stream_format = SSE

    def __init__(self, context: RenderContext, body: GenerationFields, prepared: PreparedCompletion) -> None:
        self._context = context
        self._body = body
        self._prepared = prepared

    def events(self, choice: Choice, result: TaskResult) -> list[dict[str, Any]]:
        body = self._body
        if isinstance(result, Tokens):
            return [native.render_tokens(choice, result, body.timings_per_token, self._context.piece)]
        if isinstance(result, Admitted | Progress) and body.return_progress:
            return [native.render_progress(choice, result, body.timings_per_token)]
        if isinstance(result, Done):
            return [self._final(choice, result, result.text, [])]
        return []

    def answer(self, choices: list[Choice]) -> Any:
        answers = [
            self._final(r, r.ended, r.text, r.tokens if self._body.return_tokens else []) for r in choices
        ]
        return answers if self._prepared.is_list else answers[0]

    def _final(self, choice: Choice, done: Done, content: str, tokens: list[int]) -> dict[str, Any]:
        body, task = self._body, choice.task
        answer = native.render_done(choice, content, tokens, done)
        answer |= {**render_cache_report(choice, self._context), **native.render_unmet(choice.ended)}
        answer["model"] = self._context.model_name
        answer["prompt"] = self._context.vocab.detokenize(task.own_prompt)
        answer["generation_settings"] = {
            **native.render_generation_settings(task.params, body.stream, body.timings_per_token),
            **render_parser_settings(task.params),
            "n_ctx": self._context.n_ctx,
            "model": self._context.model_name,
        }
        if choice.probs and not body.stream:
            answer["completion_probabilities"] = native.render_completion_probabilities(
                choice.probs, task.params.sampling, self._context.piece
            )
        answer |= render_warnings(self._prepared.warnings)
        return native.select_fields(answer, body.response_fields)
