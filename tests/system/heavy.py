"""Requests that ask for much: large bodies, and small ones with large answers."""

from __future__ import annotations

import contextlib
import re
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import httpx
import orjson
import psutil

from tests.system.process import START_S, CorralProcess, wait_until


@dataclass(frozen=True)
class Row:
    """`status`: what it is answered with."""

    path: str
    make: Callable[[], bytes]
    status: int


def _keys(n: int) -> bytes:
    fields = b",".join(b'"k%d":0' % i for i in range(n))
    return b'{"prompt":"a","n_predict":1,' + fields + b"}"


def _complete(**body: object) -> Callable[[], bytes]:
    return lambda: orjson.dumps({"prompt": "hello world", "ignore_eos": True, **body})


ROWS = {
    "5,000,000 unknown keys": Row("/completion", lambda: _keys(5_000_000), 400),
    "1,400,000 unknown keys": Row("/completion", lambda: _keys(1_400_000), 400),
    "logit_bias of 4,000 texts": Row(
        "/completion",
        _complete(n_predict=1, logit_bias=[[f"{i:04}" + "ab cd " * 170, 0.5] for i in range(4000)]),
        400,
    ),
    "logit_bias of 60,000 tokens": Row(
        "/completion", _complete(n_predict=1, logit_bias=[[i % 300, 0.5] for i in range(60_000)]), 200
    ),
    "n 32, n_probs 512, 200 tokens": Row("/completion", _complete(n=32, n_probs=512, n_predict=200), 400),
    "n 4, n_probs 300, 200 tokens": Row("/completion", _complete(n=4, n_probs=300, n_predict=200), 200),
    "n_probs 49,152, 21 tokens": Row("/completion", _complete(n_probs=49_152, n_predict=21), 400),
    "the same, streamed": Row("/completion", _complete(n_probs=49_152, n_predict=21, stream=True), 200),
    "with_pieces, 4 MiB": Row(
        "/tokenize", lambda: orjson.dumps({"content": "q7#Z" * 1_048_576, "with_pieces": True}), 400
    ),
    "with_pieces, 1 MiB": Row(
        "/tokenize", lambda: orjson.dumps({"content": "word " * 209_715, "with_pieces": True}), 200
    ),
    "one string of 48 MB": Row("/completion", lambda: orjson.dumps({"prompt": "word " * 10_000_000}), 400),
    "2,000,000 token ids": Row("/detokenize", lambda: orjson.dumps({"tokens": [5, 300] * 1_000_000}), 200),
    "90,000 arrays": Row("/completion", lambda: b'{"prompt":[' + b"[1]," * 90_000 + b"[1]]}", 400),
    "60 MB of backslashes": Row(
        "/tokenize", lambda: b'{"content":5,"a":"' + b"\\\\" * 30_000_000 + b'"}', 400
    ),
}


@dataclass
class Seen:
    """What one row cost others."""

    pauses_cpu_s: list[float] = field(default_factory=list)
    pauses_wall_s: list[float] = field(default_factory=list)
    rss_before_mib: float = 0.0
    rss_peak_mib: float = 0.0
    rss_after_mib: float = 0.0
    health_s: list[float] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)

    def add_pause(self, pause: dict[str, float]) -> None:
        self.pauses_cpu_s.append(pause["cpu"])
        self.pauses_wall_s.append(pause["wall"])

    @property
    def kept_mib(self) -> float:
        return self.rss_after_mib - self.rss_before_mib

    def __str__(self) -> str:
        health_s, wall_s = self.health_s or [0.0], self.pauses_wall_s
        return (
            f"{self.statuses[0]}: loop pause {max(self.pauses_cpu_s) * 1e3:.0f} ms cpu at worst, "
            f"{statistics.median(self.pauses_cpu_s) * 1e3:.0f} ms median, "
            f"{max(wall_s) * 1e3:.0f} ms wall at worst, {statistics.median(wall_s) * 1e3:.0f} ms median; "
            f"/health {max(health_s) * 1e3:.0f} ms at worst, {statistics.median(health_s) * 1e3:.0f} ms "
            f"median; front {self.rss_before_mib:.0f} MiB before, "
            f"{self.rss_peak_mib:.0f} at most, {self.kept_mib:+.0f} after"
        )


def measure(server: CorralProcess, row: Row, n_repeats: int) -> Seen:
    """Send a row so often, with others asking for `/health` meanwhile."""
    body, front, seen = row.make(), psutil.Process(server.process.pid), Seen()
    read_pause(server)
    seen.rss_before_mib = _rss_mib(front)
    with asking(server, front, seen):
        for _ in range(n_repeats):
            seen.statuses.append(send(server, row.path, body))
            seen.add_pause(read_pause(server))
    time.sleep(1.5)  # the server gives memory back half a second after a large request
    seen.rss_after_mib = _rss_mib(front)
    return seen


def measure_slow(server: CorralProcess, n: int) -> Seen:
    """Have clients ask for long answers that they do not read, until the server has cut them off."""
    body = orjson.dumps({"content": "word " * 209_715, "with_pieces": True})
    front, seen = psutil.Process(server.process.pid), Seen(statuses=[0])
    read_pause(server)
    seen.rss_before_mib = _rss_mib(front)
    with asking(server, front, seen), contextlib.ExitStack() as held:
        for _ in range(n):
            held.enter_context(slow_reader(server, "/tokenize", body))
        assert server.complete(prompt="a", n_predict=5)["tokens_predicted"] == 5
        wait_until(lambda: _n_connections(front) <= 1)  # that of the client which asks
    seen.add_pause(read_pause(server))
    time.sleep(1.5)
    seen.rss_after_mib = _rss_mib(front)
    return seen


def send(server: CorralProcess, path: str, body: bytes) -> int:
    """The status; what is answered is read and thrown away."""
    with (
        contextlib.suppress(httpx.WriteError),
        httpx.stream("POST", server.url + path, content=body, timeout=START_S) as response,
    ):
        for _ in response.iter_raw():
            pass
        return response.status_code
    return 400  # it is refused while it is sent


@contextlib.contextmanager
def asking(server: CorralProcess, front: psutil.Process, seen: Seen) -> Iterator[None]:
    is_over = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=server.url, timeout=START_S) as http:
            while not is_over.wait(0.02):
                began = time.perf_counter()
                assert http.get("/health").status_code == 200
                seen.health_s.append(time.perf_counter() - began)
                seen.rss_peak_mib = max(seen.rss_peak_mib, _rss_mib(front))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def read_pause(server: CorralProcess) -> dict[str, float]:
    """The longest pause of the loop since the last call, by clock."""
    found = re.findall(
        r'^corral_loop_pause_seconds\{clock="(\w+)"\} (\S+)$', server.get("/metrics").text, re.M
    )
    return {clock: float(value) for clock, value in found}


def slow_reader(server: CorralProcess, path: str, body: bytes) -> socket.socket:
    """A connection that has asked for much and reads nothing."""
    host, port = server.url.removeprefix("http://").split(":")
    client = socket.create_connection((host, int(port)))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    client.sendall(head.encode() + body)
    return client


def _rss_mib(process: psutil.Process) -> float:
    return process.memory_info().rss / (1 << 20)


def _n_connections(process: psutil.Process) -> int:
    return sum(each.status == psutil.CONN_ESTABLISHED for each in process.net_connections("tcp"))
