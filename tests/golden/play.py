"""Plays a case on a server of each kind, and writes down what a client sees."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import orjson
from starlette.types import ASGIApp

from corral.link.engine_state import EngineState
from tests.golden.case import MANY, MANY_SEALED, ONE_SEALED, Ask, Begin, Case, Sleep
from tests.golden.masks import HEADERS, Masks
from tests.golden.server import MODELS, started

SECONDS = 60  # for what takes milliseconds on an idle machine
WIDTH = 120  # of a line of JSON, unless it cannot be broken
PREFIX = "/base"
ROLES = ("admin", "user", "inference-only", "read-only")
_TEXTS = (
    "application/json",
    "text/event-stream",
    "application/x-ndjson",
    "application/x-jsonl",
    "text/plain",
)
_KEY_FILE = "".join(f"{role},{role}:key-{role}\n" for role in ROLES) + "limited,tpd=1:key-limited\n"
_SEALED = {"api_key_file": "$keys", "api_prefix": PREFIX}


@dataclass(slots=True)
class Answer:
    """Mutable: what has arrived of it."""

    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)


async def play(case: Case) -> str:
    """Return what the clients of all servers see; servers that answer the same share a text."""
    seen: dict[str, list[str]] = {}
    for setup in case.setups:
        seen.setdefault(await asyncio.wait_for(_Play(case, setup).run(), SECONDS), []).append(setup)
    return "\n".join(f"--- {', '.join(setups)}\n{text}" for text, setups in seen.items())


class _Play:
    """Mutable: one case on one server."""

    def __init__(self, case: Case, setup: str) -> None:
        self._case = case
        self._is_sealed = setup in (ONE_SEALED, MANY_SEALED)
        self._is_many = setup in (MANY, MANY_SEALED)
        self._kept: dict[str, str] = {}
        self._lines: list[str] = []

    async def run(self) -> str:
        with tempfile.TemporaryDirectory() as directory, mock.patch.dict(os.environ, self._case.environ):
            Path(directory, "keys").write_text(_KEY_FILE)
            Path(directory, "data").mkdir()
            self._masks = Masks(directory)
            options = {**(_SEALED if self._is_sealed else {}), **self._case.options}
            async with started(
                self._case.model, self._is_many, **_in_directory(options, directory)
            ) as server:
                self._server = server
                if self._is_many and self._case.model.is_loaded:
                    await self._load()
                await self._play()
        return "\n".join(self._lines)

    async def _play(self) -> None:
        begun: list[tuple[Ask, asyncio.Task[Answer]]] = []
        for act in self._case.acts:
            match act:
                case Ask():
                    self._write(act, await self._ask(act))
                case Begin():
                    begun.append((act.ask, await self._begin(act)))
                case Sleep():
                    self._server.engine.state = EngineState(act.state)
        for engine in self._server.engines:
            engine.is_paused = False
        for ask, task in begun:
            self._write(ask, await task)

    async def _begin(self, act: Begin) -> asyncio.Task[Answer]:
        engine = self._server.engine
        engine.is_paused, n_submitted = True, len(engine.submitted)
        task = asyncio.create_task(self._ask(act.ask))
        while len(engine.submitted) == n_submitted:
            await asyncio.sleep(0.001)
        for _ in range(act.steps):
            engine.step()
        return task

    async def _ask(self, ask: Ask) -> Answer:
        while True:
            answer = await self._ask_once(ask)
            if ask.until.encode() in answer.body:
                break
            await asyncio.sleep(0.005)
        for name, place in ask.keeps.items():
            self._kept[name] = _value_at(orjson.loads(answer.body), place)
        return answer

    async def _ask_once(self, ask: Ask) -> Answer:
        headers = {"host": "127.0.0.1:8080", **ask.headers}
        if self._is_sealed and ask.key:
            headers["authorization"] = f"Bearer key-{ask.key}"
        body = (
            b"" if ask.body is None else ask.body if isinstance(ask.body, bytes) else orjson.dumps(ask.body)
        )
        if body and "content-type" not in headers:
            headers["content-type"] = "application/json"
        path, _, query = self._filled(ask.path).partition("?")
        path = PREFIX + path if self._is_sealed and not ask.is_outside else path
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": ask.method,
            "scheme": "https" if self._is_sealed else "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8080),
            "state": {},
        }
        return await _exchange(
            self._server.app, scope, self._filled(body.decode("latin-1")).encode("latin-1"), ask.n_events
        )

    async def _load(self) -> None:
        await self._ask_once(Ask("POST", "/models/load", {"model": MODELS[0]}))
        await self._ask(Ask("GET", f"/v1/models/{MODELS[0]}", until='"value":"loaded"'))

    def _filled(self, text: str) -> str:
        return re.sub(r"\$(\w+)", lambda found: self._kept.get(found[1], found[0]), text)

    def _write(self, ask: Ask, answer: Answer) -> None:
        mask = self._masks.apply
        self._lines.append(f"> {ask.method} {mask(self._filled(ask.path))}" + _said(ask))
        self._lines.append(f"< {answer.status}")
        self._lines += sorted(
            f"< {name}: {mask(value)}" for name, value in answer.headers if name not in HEADERS
        )
        self._lines += _shown(answer, self._masks, ask.is_long)


async def _exchange(app: ASGIApp, scope: dict[str, Any], body: bytes, n_parts: int) -> Answer:
    answer, left = Answer(), asyncio.Event()
    sent = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if sent:
            return sent.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = [
                (name.decode().lower(), value.decode("latin-1")) for name, value in message["headers"]
            ]
        elif message.get("body") and not left.is_set():
            answer.parts.append(message["body"])
            if len(answer.parts) == n_parts:
                left.set()

    try:
        await app(scope, receive, send)
    except Exception:
        if not answer.status:
            raise
    return answer


def _in_directory(options: dict[str, Any], directory: str) -> dict[str, Any]:
    places = {"$keys": f"{directory}/keys", "$dir": f"{directory}/data", "$file": f"{directory}/file"}
    return {
        name: places.get(value, value) if isinstance(value, str) else value for name, value in options.items()
    }


def _value_at(value: Any, place: str) -> str:
    for step in place.split("."):
        value = value[int(step)] if step.isdigit() else value[step]
    return str(value)


def _said(ask: Ask) -> str:
    """What is worth to know of a request beside method and path."""
    key = "" if ask.key == "admin" else f" (key: {ask.key or 'none'})"
    headers = "".join(f"\n> {name}: {value}" for name, value in ask.headers.items())
    if ask.body is None:
        return key + headers
    body = repr(ask.body)[:300] if isinstance(ask.body, bytes) else pretty(ask.body)
    return f"{key}{headers}\n> " + body.replace("\n", "\n> ")


def _shown(answer: Answer, masks: Masks, is_long: bool) -> list[str]:
    body = answer.body
    if not body:
        return []
    kind = dict(answer.headers).get("content-type", "").partition(";")[0]
    if kind == "application/octet-stream" and body.isascii() and not is_long:
        kind = "text/plain"  # a file that was uploaded
    if is_long or kind not in _TEXTS:
        return [f"({kind or 'no type'})"]
    text = masks.apply(body.decode("utf-8", "backslashreplace"))
    if kind == "application/json":
        return [_shown_json(text)]
    if kind != "text/event-stream":
        lines = text.removesuffix("\n").split("\n")
        return lines if kind == "text/plain" else _folded(lines)
    events = text.split("\n\n")
    end = [] if not events[-1] else ["(the end is missing)"]
    return [*_folded([event.replace("\n", "\n  ") for event in events if event]), *end]


def _folded(events: list[str]) -> list[str]:
    """Fields at the beginning of an event that are as in the one before become dots."""
    return [_without_common(before, event) for before, event in zip(["", *events], events, strict=False)]


def _without_common(before: str, event: str) -> str:
    start, brace, rest = event.partition("{")
    if not brace or not before.startswith(start + brace):
        return event
    common = start + brace
    for name, value in list(orjson.loads(brace + rest).items())[:-1]:
        field = orjson.dumps({name: value}).decode()[1:-1] + ","
        if not before.startswith(common + field):
            break
        common += field
    return f"{start}... {event[len(common) :]}" if len(common) > len(start) + 60 else event


def _shown_json(text: str) -> str:
    """Lines that a person can compare, if nothing of the text gets lost."""
    value = orjson.loads(text)
    return pretty(value) if orjson.dumps(value).decode() == text else f"(other JSON than usual) {text}"


def pretty(value: Any, indent: str = "") -> str:
    """JSON in lines of up to WIDTH characters, as few as possible."""
    line = orjson.dumps(value).decode()
    if len(indent) + len(line) <= WIDTH or not value or not isinstance(value, dict | list):
        return line
    inner = indent + "  "
    if isinstance(value, dict):
        items = [f"{orjson.dumps(key).decode()}: {pretty(each, inner)}" for key, each in value.items()]
        return "{\n" + _packed(items, inner) + f"\n{indent}}}"
    return "[\n" + _packed([pretty(each, inner) for each in value], inner) + f"\n{indent}]"


def _packed(items: list[str], indent: str) -> str:
    lines: list[str] = []
    for item in items:
        joined = f"{lines[-1]}, {item}" if lines else ""
        if joined and len(joined) <= WIDTH and "\n" not in joined:
            lines[-1] = joined
        else:
            lines.append(indent + item)
    return ",\n".join(lines)
