"""Render chat templates in another process, which is replaced when it is lost. Safe from any thread.

The template of a model file is a program from outside: it may loop, multiply texts, or keep the interpreter
inside one call. In a process of its own it cannot hold up the front, and the system limits what it uses.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from corral.chat.template import TemplateLimit
from corral.core.errors import CorralError, Unavailable
from corral.link.frame import BlockingChannel, encode_frame
from corral.link.lifecycle import exit_name, shutting_down
from corral.link.rendering import Rendering, decode_rendered, max_cpu_s
from corral.link.restart import Life, RestartPolicy
from corral.link.worker_process import WorkerProcess, reason_of

LARGE_BYTES = 1 << 20  # of a conversation and its template
MAX_TRIES = 2
_WALL_S, _WALL_PER_CPU_S = 30.0, 10.0  # a busy machine may be this much slower
_log = logging.getLogger("corral")


class Renderer:
    """Owns the template processes: one for most conversations and one for long ones, so that others do not
    wait for these. The second is spawned when it is needed."""

    def __init__(self, timeout_s: float) -> None:
        """`timeout_s`: how long a process may show no sign of life."""
        self._usual = _TemplateProcess(timeout_s, stays=True)
        self._large = _TemplateProcess(timeout_s)

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
        process = self._usual if len(frame) < LARGE_BYTES else self._large
        answer = decode_rendered(process.ask(frame))
        if answer.error is not None:
            raise CorralError.from_info(answer.error)
        return answer.text


class _TemplateProcess:
    """One process: spawned by `start`, or by the first rendering after that. A thread watches it; a lost one
    is replaced then if it `stays`, else by the next rendering."""

    def __init__(self, timeout_s: float, stays: bool = False) -> None:
        self._timeout_s = timeout_s
        self._stays = stays
        self._lock = threading.Lock()  # guards everything below; held while a conversation is rendered
        self._worker: WorkerProcess | None = None
        self._channel: BlockingChannel | None = None
        self._policy = RestartPolicy(n_failures=sys.maxsize)
        self._is_resting = True  # until it is started or has something to render
        self._closing = threading.Event()

    @property
    def pid(self) -> int | None:
        worker = self._worker
        return worker.pid if worker is not None else None

    @property
    def is_ready(self) -> bool:
        worker = self._worker
        return self._is_resting if worker is None else not worker.is_silent

    def start(self) -> None:
        with self._lock:
            self._spawn()

    def close(self) -> None:
        self._closing.set()
        if (worker := self._worker) is not None:
            worker.kill()
        with self._lock:
            self._drop()

    def rest(self) -> None:
        if self._lock.acquire(blocking=False):
            try:
                self._is_resting = True
                self._drop()
            finally:
                self._lock.release()

    def ask(self, frame: bytes) -> bytes:
        with self._lock:
            return self._ask(frame)

    def _ask(self, frame: bytes) -> bytes:
        """Return the answer. A process that was lost for reasons of its own is replaced once."""
        for _ in range(MAX_TRIES):
            worker, channel = (self._worker, self._channel) if self._worker else self._spawn()
            assert worker is not None
            assert channel is not None
            cpu_s = max_cpu_s(len(frame))
            worker.n_running = 1
            try:
                body = channel.ask(frame, _WALL_S + cpu_s * _WALL_PER_CPU_S)
            except TimeoutError:
                self._drop()
                raise Unavailable("the chat template was not rendered in time") from None
            finally:
                worker.n_running = 0
            if body is not None:
                worker.has_answered = True
                return body
            code = self._drop()
            _log.warning("the renderer process ended with %s", exit_name(code))
            if self._closing.is_set():
                raise shutting_down()
            if code == -signal.SIGXCPU:
                break
        raise TemplateLimit("the chat template takes too much time or memory for this conversation")

    def _spawn(self) -> tuple[WorkerProcess, BlockingChannel]:
        """Start a process and its watcher. Raises Unavailable."""
        if self._closing.is_set():
            raise shutting_down()
        self._is_resting = False
        try:
            worker = WorkerProcess("corral.link.renderer_worker", "renderer", 1, self._timeout_s)
        except CorralError as error:
            raise Unavailable(error.message) from None
        channel = BlockingChannel(worker.sockets[0])
        try:
            threading.Thread(target=self._watch, args=(worker,), daemon=True).start()
        except RuntimeError as error:
            worker.close()
            channel.close()
            raise Unavailable(f"the renderer process cannot be watched: {error}") from None
        self._worker, self._channel = worker, channel
        return worker, channel

    def _drop(self) -> int | None:
        """End the process if there is one, and return its exit code."""
        worker, channel = self._worker, self._channel
        self._worker = self._channel = None
        if worker is None or channel is None:
            return None
        code = worker.end()
        channel.close()
        return code

    def _watch(self, worker: WorkerProcess) -> None:
        began_at = time.monotonic()
        worker.wait()
        with self._lock:
            if self._worker is worker:  # nothing was being rendered
                self._drop()
            reason = worker.close()
        life = Life(time.monotonic() - began_at, False, worker.has_answered)
        while self._stays and self._is_missing():
            delay_s = self._policy.end(life)
            assert delay_s is not None
            _log.warning("%(reason)s; restart in %(seconds)g s", {"reason": reason, "seconds": delay_s})
            self._closing.wait(delay_s)
            try:
                with self._lock:
                    if self._is_missing():
                        self._spawn()
            except Exception as error:
                reason, life = reason_of(error), Life(None)

    def _is_missing(self) -> bool:
        return self._worker is None and not self._is_resting and not self._closing.is_set()


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
