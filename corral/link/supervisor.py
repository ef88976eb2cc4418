"""Keep one process that works for the front: ask it, watch it in a thread, replace it when it is lost.

Safe from any thread. What was in a process when it died may be asked again, as a suspect: alone in the next
process, and before what waits. So work that kills is found out, and no other work fails with it.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from corral.core.errors import CorralError, Unavailable
from corral.link.frame import BlockingChannel
from corral.link.lifecycle import shutting_down
from corral.link.restart import EngineExit, RestartPolicy
from corral.link.worker_process import WorkerProcess

MAX_TRIES = 2
_log = logging.getLogger("corral")

ProcessT = TypeVar("ProcessT", bound=WorkerProcess)


class ProcessLost(Exception):
    """A process ended before it answered. `was_late`: it was killed because an answer took too long, which
    says nothing about what else was in it."""

    def __init__(self, code: int, was_late: bool) -> None:
        super().__init__(code)
        self.code = code
        self.was_late = was_late


class Supervisor(Generic[ProcessT]):
    """Rests until its process is started, or is asked something."""

    def __init__(
        self,
        name: str,
        spawn: Callable[[], ProcessT],
        prepare: Callable[[ProcessT], object] = lambda _: None,
    ) -> None:
        """`prepare`: makes a replacement ready; it blocks, and may raise anything."""
        self._name = name
        self._spawn = spawn
        self._prepare = prepare
        self._policy = RestartPolicy(n_failures=sys.maxsize)
        self._changed = threading.Condition()  # guards everything below
        self._newest: ProcessT | None = None
        self._process: ProcessT | None = None  # ready to be asked
        self._refusal = ""  # why nobody waits for a process
        self._n_suspects = 0  # that wait or are in a process
        self._is_resting = True
        self._rested: ProcessT | None = None
        self._closing = threading.Event()
        self._watcher: threading.Thread | None = None
        self.n_restarts = 0

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None else None

    @property
    def is_ready(self) -> bool:
        """Whether it answers now; a resting process is started by the next question."""
        process = self._process
        return self._is_resting if process is None else not process.is_silent

    def spawn(self) -> ProcessT:
        """Start a process that is not asked anything before `watch`. Raises CorralError."""
        process = self._spawn()
        with self._changed:
            self._is_resting = False
            self._newest = process
            is_closing = self._closing.is_set()
        if is_closing:
            process.close()
            raise shutting_down()
        return process

    def watch(self, process: ProcessT) -> None:
        """Have a process answer, and replace it when it is lost."""
        with self._changed:
            if self._closing.is_set():
                raise shutting_down()
            self._start_watcher(process)

    def wake(self) -> None:
        """Start the process soon if it rests."""
        with self._changed:
            self._wake()

    def rest(self) -> None:
        """End the process until there is a question for it, unless it has one now."""
        with self._changed:
            process = self._process
            if process is None or process.n_running or self._n_suspects:
                return
            self._is_resting, self._rested, self._process = True, process, None
        process.kill()

    def close(self) -> None:
        """End the process and refuse what waits; blocks until it is gone."""
        with self._changed:
            self._closing.set()
            self._refuse(shutting_down().message)
            newest, watcher = self._newest, self._watcher
        if newest is not None:
            newest.kill()
        if watcher is not None:
            watcher.join()
        elif newest is not None:
            newest.close()

    def ask(self, frame: bytes, limit_s: float, is_suspect: bool) -> bytes:
        """Return the answer. Raises TimeoutError and ProcessLost, both when the process is as good as gone,
        and Unavailable if there is none to wait for. `is_suspect`: a process died with this question."""
        process, channel = self._enter(is_suspect)
        answer = None
        try:
            answer = channel.ask(frame, limit_s)
        except TimeoutError:
            process.is_late = True
            raise
        finally:
            self._leave(process, channel, is_suspect, is_lost=answer is None)
        if answer is None:
            raise ProcessLost(process.end(), process.is_late)
        return answer

    def enter_quick(self) -> ProcessT | None:
        """Return the process to who has a socket of his own to it; None: it is not ready."""
        with self._changed:
            if self._process is None or self._n_suspects or self._refusal:
                return None
            self._process.n_running += 1
            return self._process

    def leave_quick(self, process: ProcessT, is_lost: bool) -> None:
        with self._changed:
            self._note_end(process, is_lost)
        if is_lost:
            process.kill()

    def _enter(self, is_suspect: bool) -> tuple[ProcessT, BlockingChannel]:
        """Wait for a free channel. A suspect waits until it is alone, others until there is no suspect."""
        with self._changed:
            self._wake()
            self._n_suspects += is_suspect
            self._changed.wait_for(lambda: self._refusal or self._can_enter(is_suspect))
            if self._refusal:
                self._n_suspects -= is_suspect
                raise Unavailable(self._refusal)
            assert self._process is not None
            self._process.n_running += 1
            return self._process, self._process.idle.pop()

    def _can_enter(self, is_suspect: bool) -> bool:
        process = self._process
        if process is None or not process.idle:
            return False
        return process.n_running == 0 if is_suspect else self._n_suspects == 0

    def _leave(self, process: ProcessT, channel: BlockingChannel, is_suspect: bool, is_lost: bool) -> None:
        with self._changed:
            self._n_suspects -= is_suspect
            self._note_end(process, is_lost)
            if self._process is process:
                process.idle.append(channel)
            else:
                channel.close()
        if is_lost:
            process.kill()  # if it is still alive

    def _note_end(self, process: ProcessT, is_lost: bool) -> None:
        process.n_running -= 1
        process.has_answered |= not is_lost
        process.was_busy |= is_lost
        if is_lost and self._process is process:
            self._process = None  # before the watcher notices, so that no retry enters it
        self._changed.notify_all()

    def _refuse(self, reason: str) -> None:
        self._refusal = reason
        self._changed.notify_all()

    def _wake(self) -> None:
        if self._is_resting and not self._closing.is_set():
            if self._watcher is None:
                self._start_watcher(None)
            self._is_resting = False
            self._changed.notify_all()

    def _start_watcher(self, process: ProcessT | None) -> None:
        watcher = threading.Thread(target=self._watch, args=(process,), daemon=True)
        try:
            watcher.start()
        except RuntimeError as error:
            raise Unavailable(f"the {self._name} process cannot be watched: {error}") from None
        self._watcher = watcher

    def _watch(self, process: ProcessT | None) -> None:
        reason, life = "", None
        while process := process or self._start_next(reason, life):
            reason, life = self._outlive(process)
            process = None

    def _outlive(self, process: ProcessT) -> tuple[str, EngineExit | None]:
        """Have a process answer until it is gone. Return how it ended and what it did; None: it rests."""
        began_at = time.monotonic()
        with self._changed:
            if not self._closing.is_set():
                self._process = process
                self._refuse("")
        process.wait()
        with self._changed:
            self._process = None
            was_busy = process.was_busy or process.n_running > 0
            life = EngineExit(time.monotonic() - began_at, was_busy, process.has_answered)
            was_rested = self._rested is process
        reason = process.close()
        return reason, None if was_rested else life

    def _start_next(self, reason: str, life: EngineExit | None) -> ProcessT | None:
        """Start the next process, when the policy allows it or there is a question; None: shutting down."""
        while not self._has_ended_before_next(reason, life):
            try:
                process = self.spawn()
                try:
                    self._prepare(process)
                except BaseException:
                    process.close()
                    raise
                return process
            except Exception as error:
                reason, life = _reason_of(error), EngineExit(None)
                with self._changed:
                    if not self._closing.is_set():
                        self._refuse(f"The {self._name} is down: {reason}")
        return None

    def _has_ended_before_next(self, reason: str, life: EngineExit | None) -> bool:
        """Wait for the time of the next process; return whether the server shuts down first."""
        if life is None:
            with self._changed:
                self._changed.wait_for(lambda: not self._is_resting or self._closing.is_set())
            return self._closing.is_set()
        if self._closing.is_set():
            return True  # it was ended on purpose
        delay_s = self._policy.end(life)
        assert delay_s is not None
        self.n_restarts += 1
        fields = {"reason": reason, "restart": self.n_restarts, "seconds": delay_s}
        _log.warning("%(reason)s; restart %(restart)d in %(seconds)g s", fields)
        return self._closing.wait(delay_s)


def _reason_of(error: Exception) -> str:
    """Return why a process could not be started, and log what no code expects."""
    if not isinstance(error, CorralError):
        _log.error("unexpected error in a supervisor", exc_info=error)
        return repr(error)
    return error.message
