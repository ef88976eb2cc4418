"""Render chat templates in another process, which is replaced when it is lost. Safe from any thread.

The template of a model file is a program from outside: it may loop, multiply texts, or keep the interpreter
inside one call. In a process of its own it cannot hold up the front, and the system limits what it uses.
"""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping
from typing import Any

from corral.chat.template import TemplateLimit
from corral.core.errors import CorralError, Unavailable
from corral.link.frame import BlockingChannel, encode_frame
from corral.link.lifecycle import exit_name, shutting_down
from corral.link.process import spawn_module
from corral.link.rendering import Rendering, decode_rendered, max_cpu_s

LARGE_BYTES = 1 << 20  # of a conversation and its template
MAX_TRIES = 2
_WALL_S, _WALL_PER_CPU_S = 30.0, 10.0  # a busy machine may be this much slower
_log = logging.getLogger("corral")


class Renderer:
    """Owns the template processes: one for most conversations and one for long ones, so that others do not
    wait for these. The second is spawned when it is needed."""

    def __init__(self) -> None:
        self._usual = _TemplateProcess()
        self._large = _TemplateProcess()

    def start(self) -> None:
        self._usual.start()

    def close(self) -> None:
        """End the processes; what is being rendered fails."""
        self._usual.close()
        self._large.close()

    def rest(self) -> None:
        """End the processes until there is a conversation for them, unless they have one now."""
        self._usual.rest()
        self._large.rest()

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
        process = self._usual if len(frame) < LARGE_BYTES else self._large
        answer = decode_rendered(process.ask(frame))
        if answer.error is not None:
            raise CorralError.from_info(answer.error)
        return answer.text


class _TemplateProcess:
    """One process: spawned by `start`, or by the first rendering after that or after a loss."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards everything below; held while a conversation is rendered
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: BlockingChannel | None = None
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        with self._lock:
            self._spawn()

    def close(self) -> None:
        self._is_closed = True
        if self._process is not None:
            self._process.kill()
        with self._lock:
            self._drop()

    def rest(self) -> None:
        if self._lock.acquire(blocking=False):
            try:
                self._drop()
            finally:
                self._lock.release()

    def ask(self, frame: bytes) -> bytes:
        with self._lock:
            return self._ask(frame)

    def _ask(self, frame: bytes) -> bytes:
        """Return the answer. A process that was lost for reasons of its own is replaced once."""
        for _ in range(MAX_TRIES):
            channel = self._channel or self._spawn()
            cpu_s = max_cpu_s(len(frame))
            try:
                body = channel.ask(frame, _WALL_S + cpu_s * _WALL_PER_CPU_S)
            except TimeoutError:
                self._drop()
                raise Unavailable("the chat template was not rendered in time") from None
            if body is not None:
                return body
            code = self._drop()
            _log.warning("the template process ended with %s", exit_name(code))
            if self._is_closed:
                raise shutting_down()
            if code == -signal.SIGXCPU:
                break
        raise TemplateLimit("the chat template takes too much time or memory for this conversation")

    def _spawn(self) -> BlockingChannel:
        if self._is_closed:
            raise shutting_down()
        ours, theirs = socket.socketpair()
        try:
            self._process, _ = spawn_module(
                "corral.link.renderer_worker", [theirs.fileno()], "corral.renderer"
            )
        except OSError as error:
            ours.close()
            raise Unavailable(f"the template process cannot be started: {error.strerror or error}") from None
        finally:
            theirs.close()
        self._channel = BlockingChannel(ours)
        return self._channel

    def _drop(self) -> int | None:
        """End the process if there is one, and return its exit code."""
        process, channel = self._process, self._channel
        self._process = self._channel = None
        if process is None or channel is None:
            return None
        process.kill()
        channel.close()
        return process.wait()


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
