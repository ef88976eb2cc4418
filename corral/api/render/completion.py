"""One request's answers in a dialect: what all its choices have in common, and the results of each."""

from __future__ import annotations

import secrets
import time
from typing import Any

from corral import BUILD_INFO
from corral.api.choice import Choice
from corral.api.model import RenderContext
from corral.api.prepare import PreparedCompletion
from corral.api.render import native
from corral.api.render.logprobs import TextLogprobs
from corral.api.render.state import render_cache_report
from corral.api.render.usage import Usage
from corral.api.schema.completion import GenerationFields
from corral.api.schema.openai import OpenAICompletionRequest, OpenAIFields
from corral.core.result import UNFINISHED, Admitted, Done, Progress, TaskResult, TokenProbs, Tokens


class NativeRenderer:
    """llama-server's own dialect."""

    last = b""

    def __init__(self, context: RenderContext, body: GenerationFields, prepared: PreparedCompletion) -> None:
        self._context = context
        self._body = body
        self._prepared = prepared

    def events(self, choice: Choice, result: TaskResult) -> list[dict[str, Any]]:
        body, task = self._body, choice.task
        if isinstance(result, Tokens):
            with_timings = body.timings_per_token
            return [
                native.render_tokens(
                    choice.index, result, task, choice.id_slot, with_timings, self._context.piece
                )
            ]
        if isinstance(result, Progress) and body.return_progress:
            n_past, ms = result.n_past, result.prompt_ms
            return [native.render_progress(choice.index, task, choice.id_slot, choice.n_cached, n_past, ms)]
        if isinstance(result, Admitted) and body.return_progress:
            return [
                native.render_progress(
                    choice.index, task, choice.id_slot, choice.n_cached, choice.n_cached, 0.0
                )
            ]
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
        answer = native.render_done(choice.index, content, tokens, done, task, choice.id_slot)
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


class OpenAIRenderer:
    """OpenAI's text completions."""

    last = b"data: [DONE]\n\n"

    def __init__(self, context: RenderContext, body: OpenAICompletionRequest, warnings: list[str]) -> None:
        self._context = context
        self._body = body
        self._warnings = warnings
        self._usage = Usage()
        self._logprobs: dict[int, TextLogprobs] = {}
        self._frame = {
            "id": f"cmpl-{secrets.token_hex(16)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": body.model or context.model_name,
            "system_fingerprint": BUILD_INFO,
        }

    def events(self, choice: Choice, result: TaskResult) -> list[dict[str, Any]]:
        if isinstance(result, Tokens):
            return [{**self._frame, "choices": [self._render(choice, result.text, result.probs, None)]}]
        if not isinstance(result, Done):
            return []
        self._usage.count(choice)
        last = self._render(choice, result.text, [], _finish_reason(result))
        facts = {"timings": native.render_timings(result.timings)}
        facts |= render_cache_report(choice, self._context.piece)
        events: list[dict[str, Any]] = [{**self._frame, "choices": [last], **facts}]
        if self._body.stream_options.include_usage and choice.is_last:
            events.append({**self._frame, "choices": [], "usage": self._usage.render()})
        return events

    def answer(self, choices: list[Choice]) -> dict[str, Any]:
        for choice in choices:
            self._usage.count(choice)
        answer = {
            **self._frame,
            "choices": [self._render(r, r.text, r.probs, _finish_reason(r.ended)) for r in choices],
            "usage": self._usage.render(),
            "timings": native.render_timings(choices[0].ended.timings),
            **render_cache_report(choices[0], self._context.piece),
        }
        if native_answer := verbose(self._context, self._body, choices[0]):
            answer["__verbose"] = native_answer
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


def verbose(context: RenderContext, body: OpenAIFields, choice: Choice) -> dict[str, Any] | None:
    """What the native route would have answered, where a client or the server wants to know."""
    if not (context.is_verbose if body.verbose is None else body.verbose):
        return None
    answer = native.render_done(
        choice.index, choice.text, choice.tokens, choice.ended, choice.task, choice.id_slot
    )
    settings = native.render_generation_settings(choice.task.params, body.stream, body.timings_per_token)
    prompt = context.vocab.detokenize(choice.task.own_prompt)
    return {**answer, "prompt": prompt, "generation_settings": settings}


def _finish_reason(done: Done) -> str:
    return "length" if done.stop_type in UNFINISHED else "stop"
