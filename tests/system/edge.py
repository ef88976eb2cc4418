"""Uvicorn as the server starts it, in this process, around an application of a few lines."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import uvicorn

from corral.server.connection import Limits, bounded_protocol

TIMEOUT_S = 0.5
GENEROUS_S = 60


@contextlib.asynccontextmanager
async def serving(
    app,
    timeout_s: float = TIMEOUT_S,
    protocol: type[asyncio.Protocol] | None = None,
    limits: Limits | None = None,
    send_timeout_s: float = 0.0,
):
    protocol = protocol or bounded_protocol(timeout_s, limits, send_timeout_s)
    config = uvicorn.Config(app, port=0, http=protocol, lifespan="off", log_config=None, access_log=False)
    server: Any = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        await task
        while connections := list(server.server_state.connections):
            for connection in connections:
                connection.transport.abort()
            await asyncio.sleep(0.01)


async def echo(scope, receive, send):
    n, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        n, more = n + len(message["body"]), message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]})
    await send({"type": "http.response.body", "body": b"%d" % (n % 10)})
