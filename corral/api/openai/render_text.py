"""Render text completions in OpenAI's format, whole and in chunks."""

from __future__ import annotations

from typing import Any

from corral.api.openai.answer import OpenAIAnswer
from corral.api.openai.best import best_choices
from corral.api.openai.echo import Echo, echo_prompt
from corral.api.openai.logprobs import Lists, TextLogprobs
from corral.api.render import native
from corral.api.render.warning import render_warnings
from corral.core.result import UNFINISHED, Admitted, Done, Progress, TaskResult, TokenProbs, Tokens
from corral.generate.choice import Choice
from corral.generate.model import RenderContext
from corral.generate.prepare import PreparedCompletion
from corral.generate.prompt import as_list, content_of
from corral.schema.openai import OpenAICompletionRequest


class TextRenderer(OpenAIAnswer):
    """Renders the answers to one request."""

    def __init__(
        self, context: RenderContext, body: OpenAICompletionRequest, prepared: PreparedCompletion
    ) -> None:
        super().__init__(context, body, "cmpl", "text_completion")
        self._body = body
        self._prepared = prepared
        self._n_drawn = prepared.n
        self._warnings = prepared.warnings
        self._logprobs: dict[int, TextLogprobs] = {}
        self._echoed: set[int] = set()

    def events(self, choice: Choice, result: TaskResult) -> list[dict[str, Any]]:
        if isinstance(result, Tokens):
            events = self._echo_events(choice)  # first: offsets continue after it
            event = self._event(self._render(choice, result.text, result.probs, None))
            if self._body.timings_per_token:
                event["timings"] = native.render_timings(result.timings)
            return [*events, event]
        if isinstance(result, Admitted | Progress) and self._body.return_progress:
            return [self._progress_event(choice, result)]
        if not isinstance(result, Done):
            return []
        events = self._echo_events(choice)
        end = self._render(choice, result.text, [], _finish_reason(result))
        last = self._event(end | native.render_unmet(choice.ended))
        return [*events, {**last, **self._render_facts(choice)}, *self._usage_events(choice)]

    def answer(self, choices: list[Choice]) -> dict[str, Any]:
        shown = choices
        if self._n_drawn > self._body.n:
            shown = best_choices(choices, self._n_drawn, self._body.n)
        answer = self._whole(choices, [self._render_whole(choice) for choice in shown])
        return answer | render_warnings(self._warnings)

    def _render_whole(self, choice: Choice) -> dict[str, Any]:
        if not self._body.echo:
            return self._render_rest(choice)
        echo, rest = self._render_echo(choice), self._render_rest(choice)
        return {**rest, "text": echo["text"] + rest["text"], "logprobs": _join(echo, rest)}

    def _render_rest(self, choice: Choice) -> dict[str, Any]:
        rest = self._render(choice, choice.text, choice.probs, _finish_reason(choice.ended))
        return rest | native.render_unmet(choice.ended)

    def _echo_events(self, choice: Choice) -> list[dict[str, Any]]:
        """Render the prompt before the first chunk of its answer."""
        if not self._body.echo or choice.index in self._echoed:
            return []
        self._echoed.add(choice.index)
        return [self._event(self._render_echo(choice))]

    def _progress_event(self, choice: Choice, result: Admitted | Progress) -> dict[str, Any]:
        event = self._event(self._render(choice, "", [], None))
        return {**event, **native.render_prompt_progress(choice, result, self._body.timings_per_token)}

    def _event(self, rendered: dict[str, Any]) -> dict[str, Any]:
        return {**self._frame, "choices": [rendered]}

    def _render_echo(self, choice: Choice) -> dict[str, Any]:
        echo, logprobs = self._echo(choice), None
        lists = self._logprobs[choice.index] = TextLogprobs(self._context.vocab, len(echo.text))
        if self._body.shows_probs:
            tokens, n_system = choice.task.own_prompt, choice.task.params.n_system
            probs = [None, *choice.prompt_probs][n_system:]
            logprobs = {**lists.render_prompt(tokens, probs[: len(tokens)], echo.offsets), "content": []}
        return {"text": echo.text, "index": choice.index, "logprobs": logprobs, "finish_reason": None}

    def _echo(self, choice: Choice) -> Echo:
        prompts, _ = as_list(self._body.prompt, "prompt")
        given = content_of(prompts[choice.index // self._body.n], "prompt")
        text = given if isinstance(given, str) else None
        return echo_prompt(text, choice.task.own_prompt, self._context.vocab)

    def _render(
        self, choice: Choice, text: str, probs: list[TokenProbs], reason: str | None
    ) -> dict[str, Any]:
        logprobs = self._render_logprobs(choice, probs) if probs and self._body.shows_probs else None
        return {"text": text, "index": choice.index, "logprobs": logprobs, "finish_reason": reason}

    def _render_logprobs(self, choice: Choice, probs: list[TokenProbs]) -> dict[str, Any]:
        """compat: /v1/completions: OpenAI's lists, and llama-server's `content`."""
        shown = [TokenProbs(p.chosen, p.top[: self._body.n_shown]) for p in probs]
        lists = self._logprobs.setdefault(choice.index, TextLogprobs(self._context.vocab))
        content = native.render_probs(shown, choice.task.params.sampling, self._context.piece)
        return {**lists.render(shown), "content": content}


def _join(echo: dict[str, Any], rest: dict[str, Any]) -> Lists | None:
    """Join the lists of a prompt and of its answer."""
    first: Lists | None = echo["logprobs"]
    then: Lists | None = rest["logprobs"]
    if first is None or then is None:
        return first or then
    lists = {name: first[name] + then[name] for name in first if name != "content"}
    return {**lists, "content": then["content"]}  # of the answer only


def _finish_reason(done: Done) -> str:
    return "length" if done.stop_type in UNFINISHED else "stop"
