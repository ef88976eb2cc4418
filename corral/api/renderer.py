"""What a dialect makes of the results of tasks."""

from __future__ import annotations

from typing import Any, Protocol

from corral.api.sse import StreamFormat
from corral.core.result import TaskResult
from corral.generate.choice import Choice


class EventRenderer(Protocol):
    """Converts results to events in one dialect. `last` ends a stream."""

    last: bytes
    stream_format: StreamFormat

    def events(self, choice: Choice, result: TaskResult) -> list[dict[str, Any]]: ...


class Renderer(EventRenderer, Protocol):
    """Converts finished choices to an answer, too. `answer_id`: by which its client may control it; empty:
    by the id of the request."""

    answer_id: str

    def answer(self, choices: list[Choice]) -> Any: ...
