"""`--fronts N`: start servers in a Ray cluster that share its engines, and end them together."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import msgspec

from corral.cli.cluster_address import stores
from corral.cluster.fronts import Fronts
from corral.cluster.join import join
from corral.cluster.marker import marked
from corral.cluster.message import FrontOrder, encode
from corral.core.errors import CorralError
from corral.core.settings import ServerSettings, Settings
from corral.server.listen import without_brackets

replace = msgspec.structs.replace
_FILES = ("--ledger", "--monitor-history", "--receipt-key")
_LOOK_S = 0.2
_log = logging.getLogger("corral")


def run_fronts(settings: Settings) -> None:
    """Run until a signal. Raises CorralError if one cannot start."""
    server, group = settings.server, uuid.uuid4().hex[:8]
    ray = join(server.ray)
    with _Signals() as signals, _ports(server) as ports:
        orders = [
            encode(FrontOrder(settings_of(settings, group, index, port), os.getcwd()))
            for index, port in enumerate(ports)
        ]
        fronts = Fronts(ray, orders, group, _Relay(server))
        try:
            with marked(storage_of(server)) as markers:
                fronts.check(markers)
            signals.on_hangup = lambda: fronts.signal(signal.SIGHUP)
            addresses = fronts.start(lambda: signals.n)
            if addresses:
                fields = {"n": len(addresses), "addresses": " ".join(dict.fromkeys(addresses))}
                _log.info("all %(n)d fronts are ready: %(addresses)s", fields)
            while not signals.n:
                time.sleep(_LOOK_S)
            fronts.stop(lambda: signals.n)
        finally:
            fronts.close()


def storage_of(server: ServerSettings) -> list[str]:
    """Return the directories that fronts share."""
    found = {"--shared-storage": server.shared_storage, **stores(server)}
    paths = [(option, Path(path).absolute()) for option, path in found.items() if path]
    return [str(path.parent if option in _FILES else path) for option, path in paths]


def settings_of(settings: Settings, group: str, index: int, port: int) -> Settings:
    """Return the settings of one front."""
    server = settings.server
    log_file = f"{server.log_file.removesuffix('.log')}-{index}" if server.log_file else ""
    own = {"n_fronts": 1, "front_group": group, "front_index": index, "log_file": log_file}
    return replace(settings, server=replace(server, **own, port=port, reuse_port=True))


@contextlib.contextmanager
def _ports(server: ServerSettings) -> Iterator[list[int]]:
    """Yield the port of each front: the same one, or free ones of this machine, which stay theirs when they
    are restarted."""
    with contextlib.ExitStack() as stack:
        yield [server.port or _reserve(server, stack) for _ in range(server.n_fronts)]


def _reserve(server: ServerSettings, stack: contextlib.ExitStack) -> int:
    host = without_brackets(server.hosts[0])
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        bound = stack.enter_context(socket.socket(family, kind))
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(address)
    except OSError as error:
        raise CorralError(f"cannot listen on '{host}': {error.strerror}; choose another --host") from None
    port: int = bound.getsockname()[1]
    return port


class _Relay:
    """Writes what fronts log."""

    def __init__(self, server: ServerSettings) -> None:
        self._is_text = server.log_format == "text"

    def __call__(self, index: int, line: str) -> None:
        sys.stderr.write(f"front {index}: {line}" if self._is_text else line)


class _Signals:
    """Counts signals to stop."""

    def __init__(self) -> None:
        self.n = 0
        self.on_hangup: Callable[[], None] = lambda: None

    def __enter__(self) -> _Signals:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self.on_hangup()
        else:
            self.n += 1
