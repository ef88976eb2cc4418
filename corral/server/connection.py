"""HTTP connections with limits: on the size of a request, and on how slow a client may be.

Uvicorn has no such limits. Time in which the server itself works or is stalled does not count: a client is
timed out only after several checks.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import urllib.parse
from dataclasses import dataclass
from functools import partial

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from corral.api.error import ErrorAnswer
from corral.core.errors import InvalidRequest
from corral.generate.caller import caller_in
from corral.server.cycle import open_cycle
from corral.server.header_name import canonical_head
from corral.server.record_middleware import NO_SNIFFING
from corral.server.start_queue import QueuedEvent, StartQueue

_LOOKS = 4  # checks per timeout
_LOOKS_AT_SENDER = 10  # checks per time limit of the sender
_FIRST_PROBE_S, _LONGEST_PROBE_S = 0.05, 5.0  # between two probes of a half-closed connection
_PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"
_log = logging.getLogger("corral")


@dataclass(frozen=True)
class Limits:
    header_bytes: int = 64 << 10  # of everything before the body, including the path
    n_headers: int = 100
    header_s: float = 10.0  # for the whole header, from its first byte or from the start of the connection
    body_s: float = 10.0  # grace period in which a body may arrive at any speed
    body_bytes_per_s: float = 500.0  # minimum average rate after that
    linger_s: float = 2.0  # time for a client to read why it was refused


class IdleTimer:
    """Time since the last activity of a client, in seconds of any clock."""

    def __init__(self, timeout_s: float, now: float) -> None:
        self._timeout_s = timeout_s
        self._moved_at = now
        self._n_unsent = 0

    def on_activity(self, now: float) -> None:
        """Record that the client sent something, or that the write buffer drained."""
        self._moved_at = now

    def is_over(self, now: float, n_unsent: int, must_send: bool) -> bool:
        """Check for a timeout; call it now and then. `n_unsent`: bytes in the write buffer, which only
        shrinks by the client reading. `must_send`: it is the client's turn to send."""
        if n_unsent < self._n_unsent or not (n_unsent or must_send):
            self._moved_at = now
        self._n_unsent = n_unsent
        return now - self._moved_at >= self._timeout_s


class Awaited(enum.Enum):
    NOTHING = enum.auto()
    HEADER = enum.auto()
    BODY = enum.auto()
    REST = enum.auto()  # of a body whose response ended before it was complete


class Delivery:
    """What the server expects from a client, for how long, and how many bytes have arrived."""

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
        """Check for a timeout every `look_s`. A delayed check counts for two intervals at most."""
        if is_clients_turn:
            self._waited_s += min(now - self._looked_at, 2 * self.look_s)
        self._looked_at = now
        if self.awaited is Awaited.NOTHING:
            return False
        if self.awaited is Awaited.HEADER:
            return self._waited_s >= self._limits.header_s
        is_slow = self.n_bytes < self._limits.body_bytes_per_s * self._waited_s
        return self._waited_s >= self._limits.body_s and (is_slow or self.awaited is Awaited.REST)


def bounded_protocol(
    timeout_s: float, limits: Limits | None = None, send_timeout_s: float = 0.0
) -> type[HttpToolsProtocol]:
    """HTTP as uvicorn speaks it, within limits. `timeout_s`: of a client that does nothing; `send_timeout_s`:
    of one that does not take what fills the buffer. 0: for ever."""
    fields = {"timeout_s": timeout_s, "send_timeout_s": send_timeout_s, "limits": limits or Limits()}
    return type("BoundedProtocol", (_BoundedProtocol,), {**fields, "starts": StartQueue()})


class _BoundedProtocol(HttpToolsProtocol):
    """Refuses requests that are too large or too slow with an error in the common format. Disconnects a
    client that neither sends nor reads for too long."""

    timeout_s: float
    send_timeout_s: float
    limits: Limits
    starts: StartQueue  # of all connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._delivery = Delivery(self.limits, self.loop.time())
        self._is_refused = False
        self._paused_at = 0.0  # 0: the client reads
        self._n_unread = 0  # bytes not yet consumed by the parser's callbacks
        self._n_header_bytes = self._n_headers = 0
        self._idle = IdleTimer(self.timeout_s, self.loop.time())
        self._timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None
        self._probe_timer: asyncio.TimerHandle | None = None
        self._look_at_sender_soon()
        self._check_idle_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._timer, self._idle_timer, self._send_timer, self._probe_timer):
            if timer is not None:
                timer.cancel()
        self._note_reading()
        super().connection_lost(exc)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Keep a connection on which the client still waits for its answer. It may as well have closed the
        whole connection, which looks the same: the system of a client that is gone answers a probe with a
        reset. Where no probe is possible, the client counts as gone."""
        if self._probe_timer is None:
            cycle = self.cycle
            is_waiting = cycle is not None and not cycle.response_started and not self.pipeline
            is_asked = is_waiting and self._delivery.awaited is Awaited.NOTHING and not self._is_refused
            is_plain = self.transport.get_extra_info("sslcontext") is None
            if not (is_asked and is_plain and self.scope["http_version"] == "1.1"):
                return None
            assert cycle is not None
            cycle.keep_alive = False
            self._probe(cycle, _FIRST_PROBE_S)
        return True

    def _probe(self, cycle: RequestResponseCycle, pause_s: float) -> None:
        if cycle.response_started or self.transport.is_closing():
            return  # what is written from now on probes as well
        self.transport.write(_PROBE)
        later_s = min(2 * pause_s, _LONGEST_PROBE_S)
        self._probe_timer = self.loop.call_later(pause_s, self._probe, cycle, later_s)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._paused_at = self.loop.time()
        if self.send_timeout_s and self._send_timer is None:
            self._look_at_reader_soon(_LOOKS)

    def resume_writing(self) -> None:
        self._idle.on_activity(self.loop.time())
        self._note_reading()
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None
        super().resume_writing()

    def _note_reading(self) -> None:
        """Record how long the client has not read, if it did not."""
        if self._paused_at and self.cycle is not None:
            record = caller_in(self.cycle.scope).record  # type: ignore[arg-type]
            record.blocked_s += self.loop.time() - self._paused_at
        self._paused_at = 0.0

    def data_received(self, data: bytes) -> None:
        self._idle.on_activity(self.loop.time())
        if self._is_refused:
            return
        self._unset_keepalive_if_required()
        self._n_unread += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # upgrades are optional; the request is answered like any other
        except httptools.HttpParserError as error:
            reason = error.__context__
            known = reason if isinstance(reason, InvalidRequest) else InvalidRequest("not valid HTTP")
            self._refuse(known)
            return
        if self._n_unread > self.limits.header_bytes:
            self._refuse(self._too_large())
        elif self._n_unread and self._delivery.awaited is Awaited.NOTHING:
            self._expect(Awaited.HEADER)  # only empty lines so far
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
        if self._delivery.awaited is Awaited.HEADER:  # trailers after a body are ignored
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._take_host_of_target()
        self._complete_scope()
        keep_alive = self.scope["http_version"] != "1.0" and self.parser.should_keep_alive()
        earlier = self.cycle
        self.cycle = open_cycle(self, QueuedEvent(self.starts), keep_alive)
        if earlier is None or earlier.response_complete:
            self.starts.add(partial(self._start_asgi_task, self.cycle, self.app))
        else:  # one after another
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))
        self._n_unread = 0
        self._expect(Awaited.BODY)

    def _complete_scope(self) -> None:
        target = httptools.parse_url(self.url)
        path = target.path.decode("ascii")
        self.scope["method"] = self.parser.get_method().decode("ascii")
        self.scope["http_version"] = self.parser.get_http_version()
        self.scope["path"] = urllib.parse.unquote(path) if "%" in path else path
        self.scope["raw_path"] = target.path
        self.scope["query_string"] = target.query or b""

    def on_body(self, body: bytes) -> None:
        self._n_unread = 0
        self._delivery.n_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._delivery.awaited is Awaited.REST:  # uvicorn's keep-alive timer is not running here
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
            f"the request's headers are too large; the limits are {self.limits.header_bytes >> 10} KiB "
            f"and {self.limits.n_headers} lines",
        )

    def _take_host_of_target(self) -> None:
        """Take the host of an absolute target URL, which overrides the `Host` header (RFC 9112)."""
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
            self.transport.abort()  # there is no request to answer
        else:
            self._refuse(_error(408, "the request arrived too slowly"))

    def _is_clients_turn(self) -> bool:
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return True
        if self._delivery.awaited is Awaited.HEADER:
            return False  # the next header, while this request is running
        return not (self.flow.read_paused or cycle.waiting_for_100_continue)

    def _refuse(self, error: InvalidRequest) -> None:
        """Send the error, if a response is possible now, and close.

        Further input is dropped until the client has read the error: closing a socket with unread input
        could destroy the response.
        """
        client = self.client[0] if self.client else "unix"
        _log.info("disconnected %s with %d: %s", client, error.status, error.message)
        self._is_refused = True
        can_answer = self._can_answer()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if not can_answer:
            self.transport.abort()
            return
        answer = ErrorAnswer(error, [(b"connection", b"close"), NO_SNIFFING])
        lines = [b"%b: %b\r\n" % line for line in (*self.server_state.default_headers, *answer.headers)]
        head = canonical_head(b"".join((STATUS_LINE[error.status], *lines, b"\r\n")))
        self.transport.write(head + answer.body)
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._unset_keepalive_if_required()
        self._leave_soon()

    def _can_answer(self) -> bool:
        """Whether the next bytes that the client reads would belong to this request."""
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

    def _look_at_reader_soon(self, n_looks: int) -> None:
        """Several times: one that comes late, because the server stood still, is not the client's fault."""
        delay_s = self.send_timeout_s / _LOOKS
        self._send_timer = self.loop.call_later(delay_s, self._look_at_reader, n_looks - 1)

    def _look_at_reader(self, n_looks: int) -> None:
        if n_looks:
            self._look_at_reader_soon(n_looks)
            return
        client = self.client[0] if self.client else "unix"
        _log.info("cut off %s: it did not read 64 KiB of its answer in %g s", client, self.send_timeout_s)
        self.transport.abort()

    def _check_idle_soon(self) -> None:
        if self.timeout_s:
            self._idle_timer = self.loop.call_later(self.timeout_s / _LOOKS, self._check_idle)

    def _check_idle(self) -> None:
        if self._idle.is_over(self.loop.time(), self._n_unsent(), self._must_send()):
            self.transport.abort()
        else:
            self._check_idle_soon()

    def _n_unsent(self) -> int:
        """Return the size of the write buffer, but only while nothing is added to it: otherwise progress is
        not measurable."""
        if self.flow.write_paused or (self.cycle is not None and self.cycle.response_complete):
            return int(self.transport.get_write_buffer_size())
        return 0

    def _must_send(self) -> bool:
        """Whether the server waits for a request, or for the rest of one."""
        if self.timeout_keep_alive_task is not None:
            return False  # between two requests uvicorn's keep-alive timeout applies
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return True
        return cycle.more_body and not (self.flow.read_paused or cycle.waiting_for_100_continue)


def _error(status: int, message: str) -> InvalidRequest:
    error = InvalidRequest(message)
    error.status = status
    return error
