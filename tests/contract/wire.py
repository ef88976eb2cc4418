"""Requests with exactly the headers they are given, which no client would send."""

from __future__ import annotations

import json
from typing import NamedTuple

import orjson
from hypothesis import strategies as st


class Reply(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]

    def get(self, name: str) -> str | None:
        """What is there once, or not at all."""
        found = self.all(name)
        assert len(found) <= 1, found
        return found[0] if found else None

    @property
    def error(self) -> dict:
        error = orjson.loads(self.body)["error"]
        assert error["code"] == self.status
        assert set(error) >= {"code", "message", "type"}
        return error


async def ask(
    app,
    *headers: tuple[str, str],
    method: str = "GET",
    path: str = "/health",
    body: bytes = b"",
    http_version: str = "1.1",
    client: tuple[str, int] | None = ("127.0.0.1", 1),
    server: tuple[str, int] = ("127.0.0.1", 8080),
) -> Reply:
    sent: list[dict] = []

    async def receive() -> dict:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": http_version,
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
        "client": client,
        "server": server,
        "state": {},
    }
    await app(scope, receive, send)
    start, *rest = sent
    return Reply(
        start["status"],
        [(name.decode().lower(), value.decode("latin-1")) for name, value in start["headers"]],
        b"".join(message.get("body", b"") for message in rest),
    )


def events_of(text: str) -> list[dict]:
    lines = text.split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


MISSING = {"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}


BAD_FILE_NAMES = [
    "../x",
    "..",
    ".",
    "",
    "/etc/passwd",
    "a/b",
    ".hidden",
    "a\0b",
    "x" * 129,
    "é",
    "a b",
    5,
    True,
    ["a"],
]
