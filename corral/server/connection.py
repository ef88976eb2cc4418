"""Connections whose client does its part: what it sends is bounded, and it may be slow, but not for ever.

Uvicorn knows no such limits. Time in which the server itself is at work does not count, nor does it when it
has stood still: a client is only blamed for what many looks have seen.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from dataclasses import dataclass

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from corral.api.error import ErrorAnswer
from corral.core.errors import InvalidRequest

_LOOKS = 4  # for each timeout
_LOOKS_AT_SENDER = 10  # for each of its limits
_log = logging.getLogger("corral")


@dataclass(frozen=True)
class Limits:
    header_bytes: int = 64 << 10  # with the path, and everything else in front of the body
    n_headers: int = 100
    header_s: float = 10.0  # for all of it, from its first byte, or from the beginning of the connection
    body_s: float = 10.0  # in which a body may be as slow as it likes
    body_bytes_per_s: float = 500.0  # then, on average since its beginning
    linger_s: float = 2.0  # for a client to read why it was refused


class IdleTimer:
    """Mutable: when a client last did something, in seconds of any clock."""

    def __init__(self, timeout_s: float, now: float) -> None:
        self._timeout_s = timeout_s
        self._moved_at = now
        self._n_unsent = 0

    def on_activity(self, now: float) -> None:
        """It has sent something, or taken much."""
        self._moved_at = now

    def is_over(self, now: float, n_unsent: int, must_send: bool) -> bool:
        """To be asked now and then. `n_unsent`: bytes that wait for it to take them, and become no more by
        themselves. `must_send`: it is its turn to say something."""
        if n_unsent < self._n_unsent or not (n_unsent or must_send):
            self._moved_at = now
        self._n_unsent = n_unsent
        return now - self._moved_at >= self._timeout_s


class Awaited(enum.Enum):
    NOTHING = enum.auto()
    HEADER = enum.auto()
    BODY = enum.auto()
    REST = enum.auto()  # of a body that was answered before it was whole


class Delivery:
    """Mutable: what is awaited of a client, for how long it was, and how much has come."""

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self.look_s = min(limits.header_s, limits.body_s) / _LOOKS_AT_SENDER
        self.expect(Awaited.HEADER, now)

    def expect(self, awaited: Awaited, now: float) -> None:
        self.awaited = awaited
        self.n_bytes = 0
        self._waited_s = 0.0
        self._looked_at = now

    def is_over(self, now: float, is_clients_turn: bool) -> bool:
        """To be asked every `look_s`; what was missed meanwhile counts for two looks at most."""
        if is_clients_turn:
            self._waited_s += min(now - self._looked_at, 2 * self.look_s)
        self._looked_at = now
        if self.awaited is Awaited.NOTHING:
            return False
        if self.awaited is Awaited.HEADER:
            return self._waited_s >= self._limits.header_s
        is_slow = self.n_bytes < self._limits.body_bytes_per_s * self._waited_s
        return self._waited_s >= self._limits.body_s and (is_slow or self.awaited is Awaited.REST)


def bounded_protocol(timeout_s: float, limits: Limits | None = None) -> type[HttpToolsProtocol]:
    """HTTP as uvicorn speaks it, within limits. `timeout_s`: of a client that does nothing; 0: for ever."""
    return type(
        "BoundedProtocol", (_BoundedProtocol,), {"timeout_s": timeout_s, "limits": limits or Limits()}
    )


class _BoundedProtocol(HttpToolsProtocol):
    """A request that is too much, or comes too slowly, is refused, in the shape of all errors. A client that
    neither sends nor takes anything for too long is cut off."""

    timeout_s: float
    limits: Limits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._delivery = Delivery(self.limits, self.loop.time())
        self._is_refused = False
        self._n_unread = 0  # bytes that have led to nothing yet
        self._n_header_bytes = self._n_headers = 0
        self._idle = IdleTimer(self.timeout_s, self.loop.time())
        self._timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._look_at_sender_soon()
        self._check_idle_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        self._idle.on_activity(self.loop.time())
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        self._idle.on_activity(self.loop.time())
        if self._is_refused:
            return
        self._unset_keepalive_if_required()
        self._n_unread += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # nobody has to accept that, and it is answered like any other
        except httptools.HttpParserError as error:
            reason = error.__context__
            known = reason if isinstance(reason, InvalidRequest) else InvalidRequest("this is no valid HTTP")
            self._refuse(known)
            return
        if self._n_unread > self.limits.header_bytes:
            self._refuse(self._too_large())
        elif self._n_unread and self._delivery.awaited is Awaited.NOTHING:
            self._expect(Awaited.HEADER)  # empty lines so far
        self._look_at_sender_soon()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._n_header_bytes = self._n_headers = 0
        self._n_unread = max(1, self._n_unread)
        if self._delivery.awaited is not Awaited.HEADER:
            self._expect(Awaited.HEADER)

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._n_headers += 1
        self._count(len(name) + len(value) + len(b": \r\n"))
        if self._delivery.awaited is Awaited.HEADER:  # what comes behind a body is no part of the request
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._take_host_of_target()
        super().on_headers_complete()
        self._n_unread = 0
        self._expect(Awaited.BODY)

    def on_body(self, body: bytes) -> None:
        self._n_unread = 0
        self._delivery.n_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._delivery.awaited is Awaited.REST:  # uvicorn has forgotten that it waits for the next one
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        self._n_unread = 0
        self._expect(Awaited.NOTHING)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._delivery.awaited is Awaited.BODY and not self.pipeline:
            self._expect(Awaited.REST)
            self._look_at_sender_soon()
        super().on_response_complete()

    def _should_upgrade(self) -> bool:
        return False

    def _count(self, n_bytes: int) -> None:
        self._n_header_bytes += n_bytes
        if self._n_header_bytes > self.limits.header_bytes or self._n_headers > self.limits.n_headers:
            raise self._too_large()

    def _too_large(self) -> InvalidRequest:
        return _error(
            431,
            f"the request's header is too large; it may have {self.limits.header_bytes >> 10} KiB "
            f"and {self.limits.n_headers} lines",
        )

    def _take_host_of_target(self) -> None:
        """A target may be a whole URL. Then its host counts, and what the header says does not (RFC 9112)."""
        if self.url.startswith((b"/", b"*")):
            return
        target = httptools.parse_url(self.url)
        if not target.host:
            return
        host = b"[%b]" % target.host if b":" in target.host else target.host
        authority = host if target.port is None else b"%b:%d" % (host, target.port)
        at = next((i for i, (name, _) in enumerate(self.headers) if name == b"host"), len(self.headers))
        self.headers[at : at + 1] = [(b"host", authority)]

    def _expect(self, awaited: Awaited) -> None:
        self._delivery.expect(awaited, self.loop.time())

    def _look_at_sender_soon(self) -> None:
        is_idle = self._delivery.awaited is Awaited.NOTHING
        if self._timer is None and not (is_idle or self.transport.is_closing()):
            self._timer = self.loop.call_later(self._delivery.look_s, self._look_at_sender)

    def _look_at_sender(self) -> None:
        self._timer = None
        if not self._delivery.is_over(self.loop.time(), self._is_clients_turn()):
            self._look_at_sender_soon()
        elif self._delivery.awaited is Awaited.HEADER and not self._n_unread:
            self.transport.abort()  # there is nothing to answer
        else:
            self._refuse(_error(408, "the request came too slowly"))

    def _is_clients_turn(self) -> bool:
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return True
        if self._delivery.awaited is Awaited.HEADER:
            return False  # of the next request, while this one is at work
        return not (self.flow.read_paused or cycle.waiting_for_100_continue)

    def _refuse(self, error: InvalidRequest) -> None:
        """Say why, if it is the turn of that, and end. Until it has been read, what still comes is dropped:
        to close on a client that sends destroys what it was told."""
        client = self.client[0] if self.client else "unix"
        _log.info("cut off %s with %d: %s", client, error.status, error.message)
        self._is_refused = True
        can_answer = self._can_answer()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if not can_answer:
            self.transport.abort()
            return
        answer = ErrorAnswer(error, [(b"connection", b"close")])
        lines = [b"%b: %b\r\n" % line for line in (*self.server_state.default_headers, *answer.headers)]
        self.transport.write(b"".join((STATUS_LINE[error.status], *lines, b"\r\n", answer.body)))
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._unset_keepalive_if_required()
        self._leave_soon()

    def _can_answer(self) -> bool:
        """Whether the next bytes that the client gets are about this request."""
        if self.pipeline or self.transport.is_closing():
            return False
        if self.cycle is None or self.cycle.response_complete:
            return self._delivery.awaited is not Awaited.REST
        return self._delivery.awaited is Awaited.BODY and not self.cycle.response_started

    def _leave_soon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(self.limits.linger_s, self._leave)

    def _leave(self) -> None:
        if self.transport.is_closing():
            self.transport.abort()
        else:
            self.transport.close()
            self._leave_soon()

    def _check_idle_soon(self) -> None:
        if self.timeout_s:
            self._idle_timer = self.loop.call_later(self.timeout_s / _LOOKS, self._check_idle)

    def _check_idle(self) -> None:
        if self._idle.is_over(self.loop.time(), self._n_unsent(), self._must_send()):
            self.transport.abort()
        else:
            self._check_idle_soon()

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


def _error(status: int, message: str) -> InvalidRequest:
    error = InvalidRequest(message)
    error.status = status
    return error
