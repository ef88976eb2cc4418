"""Comments that keep a silent stream alive."""

from __future__ import annotations

import asyncio

from corral.api.ollama.render import LINES
from corral.api.sse import SSE, Encoded, EventStream

PING = b": \n\n"


class Client:
    """Collects what is sent; `pinged` is set by the first ping."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.pinged = asyncio.Event()

    async def receive(self):
        await asyncio.Event().wait()

    async def send(self, message):
        self.bodies.append(message.get("body", b""))
        await asyncio.sleep(0)
        if self.bodies[-1] == PING:
            self.pinged.set()


async def run(client: Client, events, ping_s: float, format=SSE) -> bytes:
    stream = EventStream(events, b"end", format=format, ping_s=ping_s)
    await stream({"type": "http"}, client.receive, client.send)
    return b"".join(client.bodies)


async def test_a_silent_stream_is_kept_alive():
    client = Client()

    async def events():
        await client.pinged.wait()  # before the first event: a long prompt
        client.pinged.clear()
        yield {"a": 1}
        await client.pinged.wait()
        yield {"a": 2}

    sent = await run(client, events(), 0.001)
    assert sent.replace(PING, b"") == b'data: {"a":1}\n\ndata: {"a":2}\n\nend'
    assert sent.startswith(PING)


async def test_a_ping_never_splits_an_event():
    client = Client()

    async def events():
        yield Encoded([b"x"] * 2000)
        await client.pinged.wait()

    sent = await run(client, events(), 1e-6)
    assert b"x" * 2000 in sent


async def test_formats_without_comments_have_no_pings():
    async def events():
        await asyncio.sleep(0.01)
        yield {"a": 1}

    for ping_s, format in ((0.001, LINES), (-1, SSE), (0, SSE)):
        assert PING not in await run(Client(), events(), ping_s, format)
