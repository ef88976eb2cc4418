"""One request's answers in a dialect: what all its choices have in common, and the results of each."""

from __future__ import annotations

from typing import Any

from corral.api.choice import Choice
from corral.api.model import RenderContext
from corral.api.prepare import PreparedCompletion
from corral.api.render import native
from corral.api.render.logprobs import TextLogprobs
from corral.api.render.openai import OpenAIAnswer
from corral.api.render.state import render_cache_report
from corral.api.schema.completion import GenerationFields
from corral.api.schema.openai import OpenAICompletionRequest
from corral.core.result import UNFINISHED, Admitted, Done, Progress, TaskResult, TokenProbs, Tokens


class NativeRenderer:
    """llama-server's own dialect."""

    last = b""

    def __init__(self, context: RenderContext, body: GenerationFields, prepared: PreparedCompletion) -> None:
        self._context = context
        self._body = body
        self._prepared = prepared

    def events(self, choice: Choice, result: TaskResult) -> list[dict[str, Any]]:
        body = self._body
        if isinstance(result, Tokens):
            return [native.render_tokens(choice, result, body.timings_per_token, self._context.piece)]
        if isinstance(result, Admitted | Progress) and body.return_progress:
            return [native.render_progress(choice, result)]
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
        answer |= render_cache_report(choice, self._context.piece)
        answer["model"] = self._context.model_name
        answer["prompt"] = self._context.vocab.detokenize(task.own_prompt)
        answer["generation_settings"] = {
            **native.render_generation_settings(task.params, body.stream, body.timings_per_token),
            "n_ctx": self._context.n_ctx,
            "model": self._context.model_name,
        }
        if choice.probs and not body.stream:
            answer["completion_probabilities"] = native.render_completion_probabilities(
                choice.probs, task.params.sampling, self._context.piece
            )
        if self._prepared.warnings:
            answer["warnings"] = self._prepared.warnings
        return native.select_fields(answer, body.response_fields)


class OpenAIRenderer(OpenAIAnswer):
    """OpenAI's text completions."""

    def __init__(self, context: RenderContext, body: OpenAICompletionRequest, warnings: list[str]) -> None:
        super().__init__(context, body, "cmpl", "text_completion")
        self._body = body
        self._warnings = warnings
        self._logprobs: dict[int, TextLogprobs] = {}

    def events(self, choice: Choice, result: TaskResult) -> list[dict[str, Any]]:
        if isinstance(result, Tokens):
            return [{**self._frame, "choices": [self._render(choice, result.text, result.probs, None)]}]
        if not isinstance(result, Done):
            return []
        last = self._render(choice, result.text, [], _finish_reason(result))
        event = {**self._frame, "choices": [last], **self._render_facts(choice)}
        return [event, *self._usage_events(choice)]

    def answer(self, choices: list[Choice]) -> dict[str, Any]:
        rendered = [self._render(c, c.text, c.probs, _finish_reason(c.ended)) for c in choices]
        answer = self._whole(choices, rendered)
        return {**answer, "warnings": self._warnings} if self._warnings else answer

    def _render(
        self, choice: Choice, text: str, probs: list[TokenProbs], reason: str | None
    ) -> dict[str, Any]:
        logprobs = self._render_logprobs(choice, probs) if probs else None
        return {"text": text, "index": choice.index, "logprobs": logprobs, "finish_reason": reason}

    def _render_logprobs(self, choice: Choice, probs: list[TokenProbs]) -> dict[str, Any]:
        """compat: /v1/completions: OpenAI's lists, and llama-server's `content`."""
        shown = [TokenProbs(p.chosen, p.top[: self._body.n_shown]) for p in probs]
        lists = self._logprobs.setdefault(choice.index, TextLogprobs(self._context.vocab))
        content = native.render_probs(shown, choice.task.params.sampling, self._context.piece)
        return {**lists.render(shown), "content": content}


def _finish_reason(done: Done) -> str:
    return "length" if done.stop_type in UNFINISHED else "stop"
