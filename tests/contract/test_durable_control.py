"""Durable answers that were controlled, and what another server makes of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec

from corral.features.durable.runner import start_durable
from corral.storage.journal_record import frame, read_history
from tests.contract.inline import post
from tests.contract.scripted import ScriptedServer
from tests.tools.wait import wait_until_async

CONTROL = "/v1/chat/completions/control"
BODY: dict[str, Any] = {"prompt": "hi", "stream": True, "durable": True}


class Running:
    """A stream; the engine takes a step whenever the test asks for it."""

    def __init__(self, server: ScriptedServer, id: str = "r1", **body: Any) -> None:
        self.server, self.id = server, id
        server.engine.is_paused = True
        asking = server.http.post("/completion", json={**BODY, **body}, headers={"X-Request-Id": id})
        self.response = asyncio.ensure_future(asking)

    async def __aenter__(self):
        await wait_until_async(lambda: self.server.engine.n_tasks > 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.response.cancel()

    async def say(self, n: int) -> str:
        """Generate until the client has `n` characters."""
        live = self.server.services.live.find(self.client, self.id)
        assert live is not None
        while len(live.choices[0].text) < n:
            await step(self.server, lambda: len(live.choices[0].text))
        return live.choices[0].text

    @property
    def client(self):
        (key,) = {owner for owner, _ in self.server.services.live._live}
        return type("Owner", (), {"id": key})()

    async def control(self, action: str, **more: Any) -> Any:
        return await post(self.server, CONTROL, json={"id": self.id, "action": action, **more})


async def step(server: ScriptedServer, size: Callable[[], int]) -> None:
    """Take one step and wait until its token, if it has one, has come through the journal's thread."""
    before, deadline = size(), time.monotonic() + 0.1
    server.engine.step()
    while size() == before and time.monotonic() < deadline:
        await asyncio.sleep(0)


def events(stream: str) -> list[dict[str, Any]]:
    lines = (line.removeprefix("data: ") for line in stream.split("\n") if line.startswith("data: {"))
    return [json.loads(line) for line in lines]


@contextlib.asynccontextmanager
async def journaled(folder: Path, script: str) -> AsyncIterator[ScriptedServer]:
    server = ScriptedServer(journal=str(folder))
    server.say(script)
    runner = start_durable(server.services, server.app.stored_work.run, lambda: True)
    assert runner is not None
    assert server.services.journal is not None
    try:
        yield server
    finally:
        server.services.journal.stop()
        await runner.close()
        await server.services.streams.close()
        await server.services.journal.close()


async def test_an_answer_that_a_former_version_rewrote_continues(tmp_path):
    """Versions before 0.13 could replace the end of a running answer."""
    (tmp_path / "journal").mkdir()
    async with journaled(tmp_path / "journal", "the first words") as server, Running(server) as running:
        await running.say(9)
        (stream,) = server.services.streams._logs.values()
        await server.services.journal.run(lambda: None)  # all is written
        killed = shutil.copytree(tmp_path / "journal", tmp_path / "killed")
        text, vocab = "the last", server.backend.vocab
        edited = ["edited", -1, vocab.tokenize(text, False, False), text]
    (path,) = killed.glob("*/*.journal")
    with path.open("ab") as file:
        file.write(frame(msgspec.msgpack.encode(["r", 0, edited, 0])))
    history = read_history(path.read_bytes())
    assert history is not None
    assert vocab.detokenize(history.tokens(0)) == text
    async with journaled(killed, " words") as again:
        followed = await again.http.get("/v1/stream", params={"conv_id": stream.id})
    assert "".join(event["content"] for event in events(followed.text)) == "the last words"


async def test_another_server_knows_the_limit_and_the_pause(tmp_path):
    (tmp_path / "journal").mkdir()
    async with (
        journaled(tmp_path / "journal", "a" * 50) as server,
        Running(server, n_predict=40) as running,
    ):
        await running.say(4)
        assert (await running.control("limit", n_predict=12))["success"]
        assert (await running.control("pause"))["success"]
        (stream,) = server.services.streams._logs.values()
        await server.services.journal.run(lambda: None)  # all is written
        killed = shutil.copytree(tmp_path / "journal", tmp_path / "killed")
        assert (await running.control("stop"))["success"]
    async with journaled(killed, "b" * 50) as again:
        await wait_until_async(lambda: bool(again.services.live._live))
        (live,) = set(again.services.live._live.values())
        await wait_until_async(lambda: live.timer is not None and again.engine.is_waiting)
        assert live.choices[0].done is None
        ((_, id),) = again.services.live._live
        resume = {"id": id, "action": "resume"}
        assert (await post(again, CONTROL, json=resume))["success"]
        followed = await again.http.get("/v1/stream", params={"conv_id": stream.id})
    last = events(followed.text)[-1]
    assert (last["tokens_predicted"], last["stop_type"]) == (12, "limit")
