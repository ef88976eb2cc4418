"""The end of a server, with everything it has said until then."""

from __future__ import annotations

import contextlib

from tests.system.process import CorralProcess


def finish(server: CorralProcess) -> tuple[int, str]:
    """SIGTERM; the exit code, and the whole output."""
    server.process.terminate()
    with contextlib.suppress(AssertionError):
        server.wait_for("(?!)")  # the end of its output
    return server.stop(), "".join(server.lines)
