"""Connections whose client does its part: one that neither sends nor takes anything for too long is cut off.

Uvicorn knows no such limit. Time in which the server itself is at work does not count.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.auto import AutoHTTPProtocol

_LOOKS = 4  # for each timeout


class Patience:
    """Mutable: when a client last did something, in seconds of any clock."""

    def __init__(self, timeout_s: float, now: float) -> None:
        self._timeout_s = timeout_s
        self._moved_at = now
        self._n_unsent = 0

    def hear(self, now: float) -> None:
        """It has sent something, or taken much."""
        self._moved_at = now

    def is_over(self, now: float, n_unsent: int, must_send: bool) -> bool:
        """To be asked now and then. `n_unsent`: bytes that wait for it to take them, and become no more by
        themselves. `must_send`: it is its turn to say something."""
        if n_unsent < self._n_unsent or not (n_unsent or must_send):
            self._moved_at = now
        self._n_unsent = n_unsent
        return now - self._moved_at >= self._timeout_s


def patient_protocol(timeout_s: float) -> type[asyncio.Protocol]:
    """HTTP as uvicorn speaks it, but not for ever; 0: for ever."""
    if not timeout_s:
        return AutoHTTPProtocol
    return type("PatientProtocol", (_PatientProtocol,), {"timeout_s": timeout_s})


class _PatientProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    timeout_s: float

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._patience = Patience(self.timeout_s, self.loop.time())
        self._look_soon()

    def data_received(self, data: bytes) -> None:
        self._patience.hear(self.loop.time())
        super().data_received(data)

    def resume_writing(self) -> None:
        self._patience.hear(self.loop.time())
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._looking.cancel()
        super().connection_lost(exc)

    def _look_soon(self) -> None:
        self._looking = self.loop.call_later(self.timeout_s / _LOOKS, self._look)

    def _look(self) -> None:
        if self._patience.is_over(self.loop.time(), self._n_unsent(), self._must_send()):
            self.transport.abort()
        else:
            self._look_soon()

    def _n_unsent(self) -> int:
        """Only while nothing is added to it: otherwise nobody could tell what was taken."""
        if self.flow.write_paused or (self.cycle is not None and self.cycle.response_complete):
            return int(self.transport.get_write_buffer_size())
        return 0

    def _must_send(self) -> bool:
        """Whether a request is awaited, or the rest of one."""
        if self.timeout_keep_alive_task is not None:
            return False  # between two requests uvicorn has a limit
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return True
        return cycle.more_body and not (self.flow.read_paused or cycle.waiting_for_100_continue)
