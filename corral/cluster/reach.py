"""How a bridge reaches its engine's actor: one of its own, or one that it shares with other fronts."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any, Protocol

from corral import __version__
from corral.cluster.message import Asked, Place, decode_place, encode
from corral.cluster.room import Room, await_room, check_place, reason_of
from corral.cluster.shared_host import SharedHost
from corral.core.errors import CorralError
from corral.core.settings import EngineSettings

_STREAM = {
    "num_returns": "streaming",
    "_generator_backpressure_num_objects": 64,  # items that the host may send before the first is received
}
_PING_S = 1.0
_LEAVE_S = 2.0
_AGAIN_S = 0.2
_N_TRIES = 50  # for actors that end at once
_log = logging.getLogger("corral.engine")


class Reach(Protocol):
    def feed(self, n: int, message: bytes) -> Any:
        """Send the n-th message; returns Ray's reference to its receipt."""
        ...

    def events(self) -> Any:
        """Return references to what comes from the engine."""
        ...

    def keep(self) -> None:
        """Show signs of life from now on, if the actor needs them."""

    def leave(self) -> None:
        """Say that this front is gone, if the actor survives that."""


class OwnReach:
    """An actor that ends with this process."""

    def __init__(self, host: Any) -> None:
        self._host = host

    def feed(self, n: int, message: bytes) -> Any:
        return self._host.feed.remote(n, message)

    def events(self) -> Any:
        return self._host.events.options(**_STREAM).remote()

    def keep(self) -> None:
        pass

    def leave(self) -> None:
        pass


class SharedReach:
    def __init__(self, ray: Any, host: Any, front: int) -> None:
        self._ray = ray
        self._host = host
        self._front = front

    def feed(self, n: int, message: bytes) -> Any:
        return self._host.feed.remote(self._front, n, message)

    def events(self) -> Any:
        return self._host.events.options(**_STREAM).remote(self._front)

    def keep(self) -> None:
        threading.Thread(target=self._ping, daemon=True).start()

    def leave(self) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.get(self._host.leave.remote(self._front), timeout=_LEAVE_S)

    def _ping(self) -> None:
        while True:
            self._host.ping.remote(self._front)
            time.sleep(_PING_S)


def attach(ray: Any, asked: Asked, settings: EngineSettings, room: Room) -> SharedReach:
    """Join the other fronts at an engine, which is started if none has it yet. Raises CorralError."""
    reason = "its actors end at once"
    for _ in range(_N_TRIES):
        try:
            host = room.share(ray, SharedHost, asked.shared)
            arguments = (__version__, encode(settings), room.n_cpus, asked.timeout_s)
            attaching = host.attach.remote(asked.front, *arguments)
            await_room(ray, attaching, room)
            reply: bytes = ray.get(attaching)
        except (ray.exceptions.RayActorError, ValueError) as error:  # it ended meanwhile
            reason, reply = reason_of(error), b""
        if reply:
            place: Place = decode_place(reply)
            check_place(place, "an engine")
            _log.info("engine on node %s, process %d", place.node, place.pid)
            return SharedReach(ray, host, asked.front)
        time.sleep(_AGAIN_S)
    raise CorralError(f"an engine cannot start in the cluster: {reason}")
