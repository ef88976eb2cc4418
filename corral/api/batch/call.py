"""Call a route of the server in its own process: the line of a batch is a request like any other."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from starlette.types import ASGIApp, Message, Scope

from corral.api.caller import caller_in, change_caller
from corral.core.client import Client
from corral.telemetry.record import RequestRecord


class Answer:
    """Mutable: the answer as it is sent, and the record of its request."""

    def __init__(self, record: RequestRecord) -> None:
        self.record = record
        self.status = 0
        self.body = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.body += message.get("body", b"")


async def call(app: ASGIApp, path: str, body: bytes, client: Client, id: str) -> Answer:
    """Send a request of a batch of this client, and wait for the whole answer."""
    headers = {"content-type": "application/json", "content-length": str(len(body)), "x-request-id": id}
    scope = make_scope(path, headers, replace(client, is_batch=True))
    answer = Answer(caller_in(scope).record)
    await app(scope, Receive(body), answer.send)
    return answer


class Receive:
    """Returns the body, and then waits: this client never leaves."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body

    async def __call__(self) -> Message:
        if self._body is None:
            await asyncio.Event().wait()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


def make_scope(path: str, headers: dict[str, str], client: Client, query: str = "") -> Scope:
    """Return the scope of a request that the server itself makes for a client."""
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": None,
        "server": None,
    }
    change_caller(scope, is_internal=True)
    caller_in(scope).record.client = client
    return scope
