"""One request's answers in a dialect: what all its runs have in common, and the results of each."""

from __future__ import annotations

import secrets
import time
from typing import Any

from corral import BUILD_INFO
from corral.api.completion import Run
from corral.api.render import native
from corral.api.render.logprobs import TextLogprobs
from corral.api.render.state import render_cache_report
from corral.api.render.usage import Usage
from corral.api.schema.completion import GenerationFields
from corral.api.schema.openai import OpenAICompletionRequest, OpenAIFields
from corral.api.service import Service
from corral.core.result import UNFINISHED, Admitted, Done, Progress, TaskResult, TokenProbs, Tokens


class NativeRenderer:
    """llama-server's own dialect."""

    last = b""

    def __init__(self, service: Service, body: GenerationFields, warnings: list[str], is_list: bool) -> None:
        self._service = service
        self._body = body
        self._warnings = warnings
        self._is_list = is_list

    def events(self, run: Run, result: TaskResult) -> list[dict[str, Any]]:
        body, task = self._body, run.task
        if isinstance(result, Tokens):
            with_timings = body.timings_per_token
            return [
                native.render_tokens(run.index, result, task, run.id_slot, with_timings, self._service.piece)
            ]
        if isinstance(result, Progress) and body.return_progress:
            n_past, ms = result.n_past, result.prompt_ms
            return [native.render_progress(run.index, task, run.id_slot, run.n_cached, n_past, ms)]
        if isinstance(result, Admitted) and body.return_progress:
            return [native.render_progress(run.index, task, run.id_slot, run.n_cached, run.n_cached, 0.0)]
        if isinstance(result, Done):
            return [self._final(run, result, result.text, [])]
        return []

    def answer(self, runs: list[Run]) -> Any:
        answers = [
            self._final(r, r.ended, r.text, r.tokens if self._body.return_tokens else []) for r in runs
        ]
        return answers if self._is_list else answers[0]

    def _final(self, run: Run, done: Done, content: str, tokens: list[int]) -> dict[str, Any]:
        body, task = self._body, run.task
        answer = native.render_done(run.index, content, tokens, done, task, run.id_slot)
        answer |= render_cache_report(run, self._service.piece)
        answer["model"] = self._service.model_name
        answer["prompt"] = self._service.vocab.detokenize(task.own_prompt)
        answer["generation_settings"] = {
            **native.render_generation_settings(task.params, body.stream, body.timings_per_token),
            "n_ctx": self._service.info.n_ctx,
            "model": self._service.model_name,
        }
        if run.probs and not body.stream:
            answer["completion_probabilities"] = native.render_completion_probabilities(
                run.probs, task.params.sampling, self._service.piece
            )
        if self._warnings:
            answer["warnings"] = self._warnings
        return native.select_fields(answer, body.response_fields)


class OpenAIRenderer:
    """OpenAI's text completions."""

    last = b"data: [DONE]\n\n"

    def __init__(self, service: Service, body: OpenAICompletionRequest, warnings: list[str]) -> None:
        self._service = service
        self._body = body
        self._warnings = warnings
        self._usage = Usage()
        self._logprobs: dict[int, TextLogprobs] = {}
        self._frame = {
            "id": f"cmpl-{secrets.token_hex(16)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": body.model or service.model_name,
            "system_fingerprint": BUILD_INFO,
        }

    def events(self, run: Run, result: TaskResult) -> list[dict[str, Any]]:
        if isinstance(result, Tokens):
            return [{**self._frame, "choices": [self._choice(run, result.text, result.probs, None)]}]
        if not isinstance(result, Done):
            return []
        self._usage.count(run)
        choice = self._choice(run, result.text, [], _finish_reason(result))
        facts = {"timings": native.render_timings(result.timings)}
        facts |= render_cache_report(run, self._service.piece)
        events: list[dict[str, Any]] = [{**self._frame, "choices": [choice], **facts}]
        if self._body.stream_options.include_usage and run.is_last:
            events.append({**self._frame, "choices": [], "usage": self._usage.render()})
        return events

    def answer(self, runs: list[Run]) -> dict[str, Any]:
        for run in runs:
            self._usage.count(run)
        answer = {
            **self._frame,
            "choices": [self._choice(r, r.text, r.probs, _finish_reason(r.ended)) for r in runs],
            "usage": self._usage.render(),
            "timings": native.render_timings(runs[0].ended.timings),
            **render_cache_report(runs[0], self._service.piece),
        }
        if native_answer := verbose(self._service, self._body, runs[0]):
            answer["__verbose"] = native_answer
        return {**answer, "warnings": self._warnings} if self._warnings else answer

    def _choice(self, run: Run, text: str, probs: list[TokenProbs], reason: str | None) -> dict[str, Any]:
        logprobs = self._render_logprobs(run, probs) if probs else None
        return {"text": text, "index": run.index, "logprobs": logprobs, "finish_reason": reason}

    def _render_logprobs(self, run: Run, probs: list[TokenProbs]) -> dict[str, Any]:
        """compat: /v1/completions: OpenAI's lists, and llama-server's `content`."""
        shown = [TokenProbs(p.chosen, p.top[: self._body.n_shown]) for p in probs]
        lists = self._logprobs.setdefault(run.index, TextLogprobs(self._service.vocab))
        content = native.render_probs(shown, run.task.params.sampling, self._service.piece)
        return {**lists.render(shown), "content": content}


def verbose(service: Service, body: OpenAIFields, run: Run) -> dict[str, Any] | None:
    """What the native route would have answered, where a client or the server wants to know."""
    if not (service.settings.engine.verbose if body.verbose is None else body.verbose):
        return None
    answer = native.render_done(run.index, run.text, run.tokens, run.ended, run.task, run.id_slot)
    settings = native.render_generation_settings(run.task.params, body.stream, body.timings_per_token)
    prompt = service.vocab.detokenize(run.task.own_prompt)
    return {**answer, "prompt": prompt, "generation_settings": settings}


def _finish_reason(done: Done) -> str:
    return "length" if done.stop_type in UNFINISHED else "stop"
