"""Render chat templates in another process, which is replaced when it is lost. Safe from any thread.

The template of a model file is a program from outside: it may loop, multiply texts, or keep the interpreter
inside one call. In a process of its own it cannot hold up the front, and the system limits what it uses.
All models share the process: it renders one conversation at a time, so it is known which one ended it.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from corral.chat.template import TemplateLimit
from corral.core.errors import CorralError, Unavailable
from corral.link.frame import encode_frame
from corral.link.rendering import Rendering, decode_rendered, max_cpu_s
from corral.link.supervisor import MAX_TRIES, ProcessLost, Supervisor
from corral.link.worker_process import WorkerProcess

LARGE_BYTES = 1 << 20  # of a conversation and its template
_WALL_S, _WALL_PER_CPU_S = 30.0, 10.0  # a busy machine may be this much slower


class Renderer:
    """Owns the template processes: one for most conversations, and two that others do not wait for: one for
    long ones, and one for templates that have exceeded a limit. These are spawned when they are needed."""

    def __init__(self, timeout_s: float) -> None:
        """`timeout_s`: how long a process may show no sign of life."""

        def spawn() -> WorkerProcess:
            return WorkerProcess("corral.link.renderer_worker", "renderer", 1, timeout_s)

        self._usual, self._large, self._slow = (Supervisor("renderer", spawn) for _ in range(3))
        self._slow_templates: set[str] = set()

    def start(self) -> None:
        """Have the process ready soon, unless it is."""
        self._usual.wake()

    def close(self) -> None:
        """End the processes; what is being rendered fails."""
        for worker in (self._usual, self._large, self._slow):
            worker.close()

    def rest(self) -> None:
        """End the processes until there is a conversation for them, unless they have one now."""
        for worker in (self._usual, self._large, self._slow):
            worker.rest()

    @property
    def is_ready(self) -> bool:
        """Whether chats are rendered without waiting for a process; a resting one is started by the next."""
        return self._usual.is_ready

    @property
    def pid(self) -> int | None:
        """That of the usual process, if it runs."""
        return self._usual.pid

    def template(self, source: str, bos_token: str = "", eos_token: str = "") -> RemoteTemplate:
        """Compile a template. Raises CorralError if it is invalid."""
        self.render(Rendering(source, bos_token, eos_token))
        return RemoteTemplate(self, source, bos_token, eos_token)

    def render(self, what: Rendering) -> str:
        try:
            frame = encode_frame(what)
        except RecursionError:
            raise TemplateLimit("the messages are nested too deeply") from None
        worker = self._slow if what.source in self._slow_templates else self._usual
        if len(frame) >= LARGE_BYTES:
            worker = self._large
        try:
            answer = decode_rendered(_ask(worker, frame))
            if answer.error is not None:
                raise CorralError.from_info(answer.error)
        except TemplateLimit:
            if worker is self._usual:
                self._slow_templates.add(what.source)
            raise
        return answer.text


def _ask(worker: Supervisor[WorkerProcess], frame: bytes) -> bytes:
    """Return the answer. A conversation whose process was lost for reasons of its own is tried again."""
    cpu_s = max_cpu_s(len(frame))
    for i in range(MAX_TRIES):
        try:
            return worker.ask(frame, _WALL_S + cpu_s * _WALL_PER_CPU_S, is_suspect=i > 0)
        except TimeoutError:
            raise Unavailable("the chat template was not rendered in time") from None
        except ProcessLost as lost:
            if lost.code == -signal.SIGXCPU:
                break
    raise TemplateLimit("the chat template takes too much time or memory for this conversation")


class RemoteTemplate:
    """A `Template` that is rendered in the template process."""

    def __init__(self, renderer: Renderer, source: str, bos_token: str, eos_token: str) -> None:
        self.source = source
        self._renderer = renderer
        self._tokens = (bos_token, eos_token)

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        what = Rendering(
            self.source, *self._tokens, messages, tools, add_generation_prompt, dict(options or {})
        )
        return self._renderer.render(what)
