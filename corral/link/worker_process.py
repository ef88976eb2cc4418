"""A process that works for the front, such as the tokenizer: spawned, watched, killed.

It is watched from outside, because native code may keep its interpreter from reporting anything: a process
that is stopped, or takes no CPU time although it has something to do, shows no sign of life.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Callable

import psutil

from corral.core.errors import CorralError
from corral.link.frame import BlockingChannel
from corral.link.lifecycle import exit_name
from corral.link.process import spawn_module

LOOK_S = 1.0  # between two looks
_FIRST_ANSWER_S = 30.0  # at least: on a busy machine an interpreter starts slowly
_SILENT_SHARE = 0.25  # of the time after which it is killed
_LAST_LINES_S = 1.0  # for relaying its last log lines
_log = logging.getLogger("corral")


class Pulse:
    """Mutable: for how long a process has shown no sign of life. Time in which the front itself was stalled
    does not count."""

    def __init__(self, pid: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._process = psutil.Process(pid)
        self._clock = clock
        self._looked_at = clock()
        self._cpu_s = -1.0
        self.silent_s = 0.0

    def look(self, is_asked: bool) -> None:
        """Call it every `LOOK_S`. `is_asked`: the process has something to do."""
        now = self._clock()
        passed_s, self._looked_at = min(now - self._looked_at, 2 * LOOK_S), now
        used = self._process.cpu_times()
        cpu_s, before_s = used.user + used.system, self._cpu_s
        self._cpu_s = cpu_s
        is_still = is_asked and cpu_s == before_s
        is_silent = is_still or self._process.status() == psutil.STATUS_STOPPED
        self.silent_s = self.silent_s + passed_s if is_silent else 0.0


class WorkerProcess:
    """One process of a module that gets sockets as arguments. The first is its life: the front asks there
    what it asks once, and its end is that of the process. The others are channels. `Supervisor` takes them
    from `idle`, returns them, and keeps the counts."""

    def __init__(self, module: str, name: str, n_channels: int, timeout_s: float) -> None:
        """`timeout_s`: how long it may show no sign of life. Raises CorralError if it cannot be started."""
        self.name = name
        self.n_running = 0  # callers that wait for an answer
        self.has_answered = False
        self.was_busy = False  # when it ended
        self.is_late = False  # killed because an answer took too long
        self._timeout_s = timeout_s
        self._silent_s = 0.0
        sockets: list[socket.socket] = []
        try:
            with contextlib.ExitStack() as theirs:
                fds = []
                for _ in range(1 + n_channels):
                    ours, other = socket.socketpair()
                    sockets.append(ours)
                    fds.append(theirs.enter_context(other).fileno())
                self._process, self._log = spawn_module(module, fds, f"corral.{name}")
        except OSError as error:
            for each in sockets:
                each.close()
            raise CorralError(f"the {name} process cannot be started: {error.strerror or error}") from None
        self.life, *self.idle = map(BlockingChannel, sockets)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_silent(self) -> bool:
        """Whether it has shown no sign of life for longer than usual."""
        return self._silent_s > max(LOOK_S, _SILENT_SHARE * self._timeout_s)

    def wait(self) -> None:
        """Block until it is gone. Kills it if it shows no sign of life."""
        pulse = None
        while not self._is_gone():
            try:
                pulse = pulse or Pulse(self.pid)
                pulse.look(self.n_running > 0)
            except psutil.Error:  # it is just ending
                continue
            self._silent_s = pulse.silent_s
            limit_s = self._timeout_s if self.has_answered else max(_FIRST_ANSWER_S, self._timeout_s)
            if self._silent_s >= limit_s:
                fields = {"name": self.name, "seconds": limit_s}
                _log.warning("the %(name)s process shows no sign of life for %(seconds)g s", fields)
                self.kill()

    def _is_gone(self) -> bool:
        try:
            return self.life.ask(b"", LOOK_S) is None  # it sends nothing more
        except TimeoutError:
            return False

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> int:
        """Kill it, and return its exit code."""
        self.kill()
        return self._process.wait()

    def close(self) -> str:
        """End it, and describe how it ended; only for whoever waits for it. Channels in use are closed by
        their users."""
        code = self.end()
        self._log.join(_LAST_LINES_S)
        for channel in (self.life, *self.idle):
            channel.close()
        return f"the {self.name} process ended with {exit_name(code)}"
