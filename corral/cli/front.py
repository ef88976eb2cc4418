"""`python -m corral.cli.front FD ADDRESS`: one of several fronts (`--fronts`), which its actor starts.

It gets its settings through a socket, and says there when it serves, or why it cannot. `ADDRESS` is that of
its node.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys

import msgspec

from corral.cli.console import Console
from corral.cli.main import run
from corral.cluster.message import FrontReport, decode_order
from corral.core.errors import CorralError
from corral.core.result import ModelInfo
from corral.core.settings import Settings
from corral.link.frame import BlockingChannel
from corral.server.log import log_to_file, log_to_stderr, report_fatal

replace = msgspec.structs.replace


class _FrontConsole(Console):
    def __init__(self, settings: Settings, channel: BlockingChannel) -> None:
        super().__init__(settings)
        self._channel = channel

    def ready(self, address: str, info: ModelInfo) -> None:
        super().ready(address, info)
        self._channel.send(FrontReport(address))


def main() -> int:
    channel = BlockingChannel(socket.socket(fileno=int(sys.argv[1])))
    order = decode_order(channel.receive() or b"")
    with contextlib.suppress(OSError):  # absolute paths need it not
        os.chdir(order.directory)
    settings = _with_own_host(order.settings, sys.argv[2])
    try:
        log_to_stderr(settings.server)
        log_to_file(settings.server)
        run(settings, _FrontConsole(settings, channel))
    except CorralError as error:
        report_fatal(error.message)
        channel.send(FrontReport(refusal=error.message))
        return 1
    return 0


def _with_own_host(settings: Settings, host: str) -> Settings:
    """Let fronts with the same storage reach each other: the port that clients use may be of several."""
    if not settings.server.shared_storage:
        return settings
    return replace(settings, server=replace(settings.server, own_host=host))


if __name__ == "__main__":
    raise SystemExit(main())
