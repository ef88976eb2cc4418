"""The Ray actor of an engine: starts the usual engine process on its node, and relays frames, files and log.

Ray decides where it runs, and says when it is lost; what is said goes through a `Wire`. Not a Ray Serve
replica: a front and an engine have one long conversation in both directions, and a Serve handle sends every
call to any replica (`choose_replica` reserves one for a single call).
"""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
import threading
from concurrent.futures import Future

import msgspec

from corral import __version__
from corral.core.settings import EngineSettings
from corral.fleet.ray.bridge_channel import BridgeChannel
from corral.fleet.ray.join import node_address
from corral.fleet.ray.message import EnginePlace, Exit, Lines, encode
from corral.fleet.ray.node_share import missing_files, with_threads
from corral.fleet.ray.wire import Door
from corral.link.frame import BlockingChannel, decode_settings, wrap_frame
from corral.link.process import spawn_module

N_THREADS = 4  # `live` keeps one
_ENGINE = "corral.link.worker"
_LOG = "corral.engine"


class EngineHost:
    """A threaded actor."""

    def __init__(self) -> None:
        self._front = BridgeChannel(self)
        self._settings: EngineSettings | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, version: str, body: bytes, n_cpus: int) -> bytes:
        """Start the engine with the settings in a frame; returns its `EnginePlace`."""
        if version != __version__:
            return _refuse(f"it has Corral {__version__}, the front {version}")
        settings = decode_settings(body)
        if missing := missing_files(settings):
            return _refuse(f"it has no file {missing[0]}")
        self._settings = with_threads(settings, n_cpus)
        door = Door(node_address())
        started: Future[None] = Future()
        threading.Thread(target=self._run, args=(self._settings, started), daemon=True).start()
        started.result()
        threading.Thread(target=lambda: self._front.run(door.accept()), daemon=True).start()
        return encode(msgspec.structs.replace(self._place, endpoint=door.endpoint, key=door.key))

    def describe(self) -> bytes:
        return encode(self._place)

    def live(self) -> None:
        """Do not return: the call fails when this actor is lost."""
        threading.Event().wait()

    @property
    def _place(self) -> EnginePlace:
        model = self._settings.model if self._settings is not None else ""
        pid = self._process.pid if self._process is not None else -1
        return EnginePlace(socket.gethostname(), pid, model, address=node_address())

    def write(self, body: bytes) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self._channel.send_frames(wrap_frame(body))

    def pass_file(self, fd: int) -> None:
        socket.send_fds(self._parcels, [b"."], [fd])

    def _run(self, settings: EngineSettings, started: Future[None]) -> None:
        """Run the engine, which ends with the thread that has started it."""
        try:
            log = self._spawn()
            self._channel.send(settings)
        except Exception as error:  # whatever it is, `start` reports it
            started.set_exception(error)
            return
        started.set_result(None)
        with contextlib.suppress(OSError):
            while (body := self._channel.receive()) is not None:
                self._front.receive(body)
        assert self._process is not None
        code = self._process.wait()
        log.join(1.0)
        self._front.say(Exit(code))

    def _spawn(self) -> threading.Thread:
        """Start the process; returns the thread that relays its log."""
        ours, theirs = socket.socketpair()
        self._parcels, theirs_parcels = socket.socketpair()
        self._channel = BlockingChannel(ours)
        _relay_log(self._front)
        with theirs, theirs_parcels:
            fds = [theirs.fileno(), theirs_parcels.fileno()]
            self._process, log = spawn_module("corral.fleet.ray.child_process", fds, _LOG, [_ENGINE])
        return log


def _relay_log(front: BridgeChannel) -> None:
    log = logging.getLogger(_LOG)
    log.setLevel(logging.DEBUG)
    log.propagate = False
    log.addHandler(_LogHandler(front))


class _LogHandler(logging.Handler):
    def __init__(self, front: BridgeChannel) -> None:
        super().__init__()
        self._front = front

    def emit(self, record: logging.LogRecord) -> None:
        self._front.say(Lines(f"<{record.levelno:02}>{record.getMessage()}\n"))


def _refuse(reason: str) -> bytes:
    """Return the `EnginePlace` of a process that does not run."""
    return encode(EnginePlace(socket.gethostname(), refusal=reason))
