"""Render transcriptions in OpenAI's formats."""

from __future__ import annotations

from typing import Any

from corral.api.render.warning import render_warnings
from corral.api.sse import SSE
from corral.chat.event import Content, Event
from corral.core.result import Done, TaskResult, Tokens
from corral.generate.choice import Choice
from corral.generate.prepare_chat import PreparedChat
from corral.schema.transcription import TranscriptionRequest


class TranscriptionRenderer:
    """Mutable: the text so far, without reasoning. `duration_s`: of the clip."""

    answer_id = ""
    last = b"data: [DONE]\n\n"
    stream_format = SSE

    def __init__(self, body: TranscriptionRequest, prepared: PreparedChat, duration_s: float) -> None:
        self._body = body
        self._parser = prepared.chat_format.parser(prepared.chat, prepared.prompt)
        self._warnings = prepared.completion.warnings
        self._duration_s = duration_s
        self._texts: list[str] = []

    def events(self, choice: Choice, result: TaskResult) -> list[dict[str, Any]]:
        if isinstance(result, Tokens):
            return self._deltas(self._parser.feed(result.text))
        if not isinstance(result, Done):
            return []
        deltas = self._deltas([*self._parser.feed(result.text), *self._parser.finish()])
        done = {"type": "transcript.text.done", "text": "".join(self._texts), **self._facts(choice)}
        return [*deltas, done]

    def answer(self, choices: list[Choice]) -> dict[str, Any]:
        (choice,) = choices
        text = self.text(choice)
        if self._body.response_format != "verbose_json":
            return {"text": text, **self._facts(choice)}
        segment = {"id": 0, "seek": 0, "start": 0.0, "end": self._duration_s, "text": text}
        segment |= {"tokens": choice.tokens, "temperature": choice.task.params.sampling.temperature}
        return {
            "task": "transcribe",
            "language": self._body.language,
            "duration": self._duration_s,
            "text": text,
            "segments": [segment] if text else [],
            **self._facts(choice),
        }

    def text(self, choice: Choice) -> str:
        """Return the whole text of an answer."""
        self._deltas([*self._parser.feed(choice.text), *self._parser.finish()])
        return "".join(self._texts).strip()

    def plain(self, choice: Choice) -> str:
        """Return the answer in a format that is not JSON."""
        text = self.text(choice)
        if self._body.response_format == "text":
            return f"{text}\n"
        lines = "\n".join(line for line in text.splitlines() if line.strip())
        if self._body.response_format == "srt":
            return f"1\n{_time(0, ',')} --> {_time(self._duration_s, ',')}\n{lines}\n\n" if lines else ""
        cue = f"{_time(0, '.')} --> {_time(self._duration_s, '.')}\n{lines}\n\n" if lines else ""
        return f"WEBVTT\n\n{cue}"

    def _deltas(self, events: list[Event]) -> list[dict[str, Any]]:
        texts = [event.text for event in events if isinstance(event, Content)]
        self._texts += texts
        return [{"type": "transcript.text.delta", "delta": text} for text in texts]

    def _facts(self, choice: Choice) -> dict[str, Any]:
        n_input, n_output = len(choice.task.prompt), len(choice.tokens)
        details = {"text_tokens": len(choice.task.own_prompt), "cached_tokens": choice.n_cached}
        details["audio_tokens"] = n_input - details["text_tokens"]
        usage = {
            "type": "tokens",
            "input_tokens": n_input,
            "output_tokens": n_output,
            "total_tokens": n_input + n_output,
            "input_token_details": details,
        }
        return {"usage": usage, **render_warnings(self._warnings)}


def _time(seconds: float, point: str) -> str:
    ms = round(seconds * 1000)
    hours, minutes = ms // 3_600_000, ms // 60_000 % 60
    return f"{hours:02}:{minutes:02}:{ms // 1000 % 60:02}{point}{ms % 1000:03}"
