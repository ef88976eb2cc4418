"""`python -m corral.fleet.ray.bridge FD FD ADDRESS ...`: an engine of a Ray cluster, as a process.

To the front it is an engine process: frames on one socket, descriptors on another, log on stderr, and an end.
So Ray's code and its threads stay out of the front, and a front that goes takes its engines along. A reader
thread sends commands; the main thread receives events; others watch for what is lost.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from corral import __version__
from corral.core.errors import CorralError
from corral.core.file import write_all
from corral.core.result import Heartbeat, LoadFailed, Placed
from corral.core.settings import EngineSettings
from corral.core.task import Verb
from corral.fleet.ray.host import N_THREADS, EngineHost
from corral.fleet.ray.join import join
from corral.fleet.ray.message import (
    Asked,
    EnginePlace,
    Exit,
    Frame,
    Frames,
    FromHost,
    Lines,
    Part,
    Saved,
    decode_from_host,
    encode,
    read_parts,
)
from corral.fleet.ray.reservation import (
    NodeRefused,
    Reservation,
    await_place,
    await_reservation,
    reason_of,
    reserve,
)
from corral.fleet.ray.rpc_workers import RpcWorkers
from corral.fleet.ray.wire import Wire, connect
from corral.link.frame import BlockingChannel, decode_settings
from corral.link.lifecycle import exit_name
from corral.link.log import log_to_front

_BEAT_S = 0.5
_NOTICE_S = 0.3  # for Ray to say why a connection has ended
_WORKER_S = 3.0  # to notice that an RPC worker is lost, which ends the engine
_log = logging.getLogger("corral.engine")


class _Peek(msgspec.Struct, frozen=True):
    """Of a command only what concerns its file."""

    id: int = -1
    task_id: int = -1  # of a `Cancel`
    fd: int = -1
    type: str = ""
    verb: str = ""

    @property
    def saves(self) -> bool:
        return self.verb == Verb.SAVE or self.type == "hand_over"


_peek = msgspec.msgpack.Decoder(_Peek).decode


def main() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    log_to_front()
    channel = BlockingChannel(*(socket.socket(fileno=int(fd)) for fd in sys.argv[1:3]))
    asked = Asked.parse(sys.argv[3:])
    settings = decode_settings(channel.receive() or b"")
    beats, workers = _Beats(channel), None
    try:
        ray = join(asked.address)
        reservation = reserve(ray, asked, settings.n_threads)
        if asked.n_rpc_workers:
            workers = RpcWorkers(ray, asked, reservation, settings.n_threads)
            settings = msgspec.structs.replace(settings, rpc=workers.endpoints)
            _log.info("RPC workers on nodes %s", workers.nodes)
        host, place = _start(ray, asked, settings, reservation)
        wire = connect(place.endpoint, place.key)
    except CorralError as error:
        _fail(error.message, channel, beats, may_pass=not isinstance(error, NodeRefused))
    except OSError as error:
        reason = f"the engine at {place.endpoint} cannot be reached: {error.strerror or error}"
        _fail(reason, channel, beats, may_pass=True)
    bridge = _Bridge(wire, place, channel, beats)
    bridge.watch(lambda: _wait_lost(ray, host))
    if workers is not None:
        bridge.watch(workers.wait_lost, _WORKER_S)
    threading.Thread(target=bridge.send, daemon=True).start()
    _leave(bridge.receive())


class _Beats:
    """Shows that this process is alive until the engine does, and ends it with the front. In a process of its
    own: loading Ray blocks all threads for seconds. Nothing else may be sent before `stop`."""

    def __init__(self, channel: BlockingChannel) -> None:
        parent = os.getpid()
        self._lock = threading.Lock()
        self._child = os.fork()
        if not self._child:
            try:
                while os.getppid() == parent:
                    channel.send([Heartbeat(0.0, 0.0)])
                    time.sleep(_BEAT_S)
            except OSError:
                os.kill(parent, signal.SIGKILL)
            os._exit(0)

    def stop(self) -> None:
        with self._lock:
            if self._child:
                os.kill(self._child, signal.SIGKILL)
                os.waitpid(self._child, 0)
                self._child = 0


def _fail(reason: str, channel: BlockingChannel, beats: _Beats, may_pass: bool) -> NoReturn:
    beats.stop()
    with contextlib.suppress(OSError):  # the front is gone
        channel.send([LoadFailed(reason, may_pass)])
    _leave(1)


def _leave(code: int) -> NoReturn:
    sys.stderr.flush()
    os._exit(code)  # Ray ends the actors of a driver that is gone


def _start(
    ray: Any, asked: Asked, settings: EngineSettings, reservation: Reservation
) -> tuple[Any, EnginePlace]:
    """Start the actor; returns it, and where it runs."""
    host = reservation.start(ray, EngineHost, f"engine-{asked.index}", max_concurrency=N_THREADS)
    starting = host.start.remote(__version__, encode(settings), reservation.n_cpus)
    await_reservation(ray, starting, reservation)
    place = await_place(ray, starting, "an engine")
    _log.info("on node %s (%s), process %d", place.node, place.address, place.pid)
    return host, place


def _wait_lost(ray: Any, host: Any) -> str:
    """Wait until the actor is lost; returns why."""
    try:
        ray.get(host.live.remote())
    except ray.exceptions.RayError as error:
        return f"the engine in the cluster is lost: {reason_of(error)}"
    raise AssertionError


class _Bridge:
    def __init__(self, wire: Wire, place: EnginePlace, channel: BlockingChannel, beats: _Beats) -> None:
        self._wire = wire
        self._place: EnginePlace | None = place  # until the front knows it
        self._node = place.node
        self._channel = channel
        self._beats = beats
        self._saves: dict[int, int] = {}  # descriptors of files that the engine writes
        self._notice_s = 0.0

    def watch(self, wait_lost: Callable[[], str], notice_s: float = 0.0) -> None:
        """Fail when something is lost, for the reason that a function returns then: at most `notice_s` after
        the engine has ended for the same reason."""
        self._notice_s = max(self._notice_s, notice_s)

        def wait() -> None:
            _fail(wait_lost(), self._channel, self._beats, may_pass=True)

        threading.Thread(target=wait, daemon=True).start()

    def send(self) -> None:
        """Pass commands and their files on, until the front is gone."""
        while (body := self._channel.receive()) is not None:
            command = _peek(body)
            if command.fd < 0:
                self._feed(Frame(body, command.task_id))
            elif command.saves:
                fd = self._saves[command.id] = self._channel.receive_fd()
                os.lseek(fd, 0, os.SEEK_SET)
                self._feed(Frame(body, command.id, saves=True))
            else:
                self._send_file(self._channel.receive_fd())
                self._feed(Frame(body, command.id, takes=True))
        _leave(0)

    def receive(self) -> int:
        """Pass events on until the engine has ended; returns an exit code."""
        try:
            while (body := self._wire.receive()) is not None:
                item = decode_from_host(body)
                if isinstance(item, Exit):
                    return self._end(item.code)
                self._apply(item)
        except OSError:
            return 1  # the front is gone
        time.sleep(_NOTICE_S)
        _fail(f"the connection to the node {self._node} is lost", self._channel, self._beats, may_pass=True)

    def _feed(self, message: Part | Frame) -> None:
        with contextlib.suppress(OSError):  # `receive` reports it
            self._wire.send(message)

    def _send_file(self, fd: int) -> None:
        if fd < 0:
            return
        try:
            for data in read_parts(fd):
                self._feed(Part(data))
        finally:
            os.close(fd)

    def _take_file(self, saved: Saved) -> None:
        """Write the next part of what the engine has saved."""
        if saved.data:
            write_all(self._saves[saved.id], saved.data)
        else:
            os.close(self._saves.pop(saved.id))

    def _apply(self, item: FromHost) -> None:
        if isinstance(item, Frames):
            if self._place is not None:
                self._beats.stop()
                self._channel.send([Placed(self._place.node, self._place.address, self._place.pid)])
                self._place = None
            self._channel.send_frames(item.data)
        elif isinstance(item, Lines):
            sys.stderr.write(item.text)
        elif isinstance(item, Saved):
            self._take_file(item)

    def _end(self, code: int) -> int:
        if not code:
            return 0
        time.sleep(self._notice_s)
        self._channel.send([LoadFailed(f"the engine process in the cluster ended with {exit_name(code)}")])
        return 1


if __name__ == "__main__":
    main()
