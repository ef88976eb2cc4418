"""Answers that are forked and edited while they are generated."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from corral.api.durable_runner import start_durable
from corral.storage.journal_record import read_history
from corral.telemetry.middleware import RecordMiddleware
from tests.contract.inline import post
from tests.contract.scripted import ScriptedServer
from tests.tools.wait import wait_until_async

CHAT = "/v1/chat/completions"
PATHS = [CHAT, "/v1/completions", "/completion"]
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "stream": True}
FIELD = {CHAT: "content", "/v1/completions": "text", "/completion": "content"}


class Running:
    """A stream; the engine takes a step whenever the test asks for it."""

    def __init__(self, server: ScriptedServer, path: str, id: str = "r1", **body: Any) -> None:
        self.server, self.path, self.id = server, path, id
        server.engine.is_paused = True
        asking = server.http.post(path, json={**BODY, **body}, headers={"X-Request-Id": id})
        self.response = asyncio.ensure_future(asking)

    async def __aenter__(self):
        await wait_until_async(lambda: self.server.engine.n_tasks > 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.response.cancel()

    async def say(self, n: int) -> str:
        """Generate until the client has `n` characters."""
        live = self.server.state.live.find(self.client, self.id)
        assert live is not None
        while len(live.choices[0].text) < n:
            await step(self.server, lambda: len(live.choices[0].text))
        return live.choices[0].text

    @property
    def client(self):
        (key,) = {owner for owner, _ in self.server.state.live._live}
        return type("Owner", (), {"id": key})()

    async def control(self, action: str, status: int = 200, **more: Any) -> Any:
        body = {"id": self.id, "action": action, **more}
        return await post(self.server, CHAT + "/control", status, json=body)

    async def read(self) -> str:
        self.server.engine.is_paused = False
        response = await self.response
        assert response.status_code == 200, response.text
        return shown(response.text, FIELD[self.path])


async def step(server: ScriptedServer, size: Callable[[], int]) -> None:
    """Take one step and wait until its token, if it has one, has come through the journal's thread."""
    before, deadline = size(), time.monotonic() + 0.1
    server.engine.step()
    while size() == before and time.monotonic() < deadline:
        await asyncio.sleep(0)


def events(stream: str) -> list[dict[str, Any]]:
    lines = (line.removeprefix("data: ") for line in stream.split("\n") if line.startswith("data: {"))
    return [json.loads(line) for line in lines]


def shown(stream: str, field: str) -> str:
    """What a client shows at the end: it cuts where an edit says so."""
    text = ""
    for event in events(stream):
        choice = event["choices"][0] if event.get("choices") else event
        text = text[: choice.get("edit", {}).get(field)]
        text += choice.get("delta", choice).get(field) or ""
    return text


def cuts(stream: str) -> list[dict[str, int]]:
    choices = [event["choices"][0] if event.get("choices") else event for event in events(stream)]
    return [choice["edit"] for choice in choices if "edit" in choice]


@pytest.fixture
def server():
    server = ScriptedServer()
    server.say("the first words of it")
    return server


@pytest.mark.parametrize("path", PATHS)
async def test_an_edit_is_an_event_of_the_stream_and_the_answer_continues_after_it(server, path):
    async with Running(server, path) as running:
        await running.say(9)
        server.say(" and so on")
        assert await running.control("edit", keep=4, text="last wörds") == {"success": True}
        task = server.engine.submitted[-1]
        assert server.backend.vocab.detokenize(task.given) == "the last wörds"
        assert await running.read() == "the last wörds and so on"
        assert [cut[FIELD[path]] for cut in cuts((await running.response).text)] == [4]


async def test_the_reasoning_is_edited_while_there_is_no_content(server):
    server.say("<think>one two three</think>yes")
    async with Running(server, CHAT) as running:
        await running.say(len("<think>one two"))
        server.say(", or not.</think>no")
        assert (await running.control("edit", keep=4, text="1"))["success"]
        assert await running.read() == "no"
        stream = (await running.response).text
    assert cuts(stream) == [{"reasoning_content": 4}]
    assert shown(stream, "reasoning_content") == "one 1, or not."


async def test_a_whole_answer_is_edited_too(server):
    async with Running(server, CHAT, stream=False) as running:
        await running.say(9)
        server.say("!")
        assert (await running.control("edit", keep=0, text="Yes"))["success"]
        server.engine.is_paused = False
        answer = (await running.response).json()
    assert answer["choices"][0]["message"]["content"] == "Yes!"
    assert answer["usage"]["completion_tokens"] == len("Yes!") + 1


async def test_what_may_become_a_stop_string_is_sent_once(server):
    async with Running(server, "/completion", stop=["END"]) as running:
        await running.say(9)
        server.say("D of it")
        assert (await running.control("edit", keep=4, text="E"))["success"]
        assert await running.read() == "the ED of it"
    server.say("the first words of it")
    async with Running(server, "/completion", stop=["END"]) as running:
        await running.say(9)
        assert (await running.control("edit", keep=4, text="x END y"))["success"]
        assert await running.read() == "the x "
        assert events((await running.response).text)[-1]["stop_type"] == "word"


async def test_only_what_the_client_has_can_be_kept(server):
    async with Running(server, CHAT) as running:
        n = len(await running.say(5))
        error = await running.control("edit", 400, keep=n + 1, text="x")
        assert error["param"] == "keep"
        assert (await running.control("edit", 400))["param"] == "keep"
        assert (await running.control("edit", keep=0, index=1))["success"] is False
        assert await running.read() == "the first words of it"
    for action in ("edit", "fork"):
        assert (await running.control(action, keep=0))["success"] is False


@pytest.mark.parametrize("more", [{"grammar": 'root ::= "a"*'}, {"json_schema": {"type": "object"}}])
async def test_an_answer_with_a_grammar_is_not_edited(server, more):
    async with Running(server, "/completion", **more) as running:
        await running.say(3)
        assert (await running.control("edit", keep=0, text="x"))["success"] is False


@pytest.mark.parametrize("path", PATHS)
async def test_a_fork_begins_with_what_was_said_and_has_its_own_seed(server, path):
    async with Running(server, path, seed=7) as running:
        said = await running.say(9)
        server.say("... and another end")
        body = {"id": "r1", "action": "fork", "seed": 8}
        forking = asyncio.ensure_future(server.http.post(path + "/control", json=body))
        if path == "/v1/completions":
            assert (await forking).status_code == 404  # it has no route of its own
            return
        await wait_until_async(lambda: len(server.engine.submitted) == 2)
        task = server.engine.submitted[-1]
        assert (task.params.sampling.seed, server.backend.vocab.detokenize(task.given)) == (8, said)
        assert await running.read() == "the first words of it"
        second = (await forking).text
    assert shown(second, FIELD[path]) == said + "... and another end"
    assert cuts(second) == []
    if path == CHAT:
        ids = {event["id"] for event in events(second)}
        assert len(ids) == 1
        assert ids.isdisjoint({event["id"] for event in events((await running.response).text)})


async def test_a_fork_of_several_choices_has_as_many(server):
    async with Running(server, CHAT, n=2, stream=False) as running:
        await running.say(5)
        server.say("!")
        forking = asyncio.ensure_future(running.control("fork"))
        await wait_until_async(lambda: len(server.engine.submitted) == 4)
        server.engine.is_paused = False
        answers = [choice["message"]["content"] for choice in (await forking)["choices"]]
    assert len(answers) == 2
    assert all(answer.startswith("the f") and answer.endswith("!") for answer in answers)


@contextlib.asynccontextmanager
async def journaled(folder: Path, script: str) -> AsyncIterator[ScriptedServer]:
    server = ScriptedServer(journal=str(folder))
    server.say(script)
    runner = start_durable(server.state, RecordMiddleware(server.app, []), lambda: True)
    assert runner is not None
    assert server.state.journal is not None
    try:
        yield server
    finally:
        server.state.journal.stop()
        await runner.close()
        await server.state.streams.close()
        await server.state.journal.close()


@pytest.mark.parametrize("action", ["edit", "fork"])
async def test_another_server_continues_an_edited_and_a_forked_answer(tmp_path, action):
    (tmp_path / "journal").mkdir()
    async with (
        journaled(tmp_path / "journal", "the first words") as server,
        Running(server, CHAT, durable=True) as running,
    ):
        await running.say(9)
        server.say(", and on")
        changing = asyncio.ensure_future(
            server.http.post(
                CHAT + "/control", json={"id": "r1", "action": action, "keep": 4, "text": "last"}
            )
        )
        stream = await _find_stream(server, action)
        while ", a" not in shown(bytes(stream._bytes).decode(), "content"):
            await step(server, lambda: len(stream._bytes))
        killed = shutil.copytree(tmp_path / "journal", tmp_path / "killed")
        sent = bytes(stream._bytes)
        server.engine.is_paused = False
        await changing
    found = [read_history(path.read_bytes()) for path in killed.glob("*/*.journal")]
    assert [each.opening.id for each in found if each is not None].count(stream.id) == 1
    async with journaled(killed, "d forth") as again:
        followed = await again.http.get("/v1/stream", params={"conv_id": stream.id})
    begun = "the last" if action == "edit" else shown(sent.decode(), "content").partition(",")[0]
    assert b"".join(followed.content.split(b"id: ")).count(b"edit") == sent.count(b"edit")
    text = shown(followed.text, "content")
    assert text.startswith(begun + ", a")
    assert text.endswith("d forth")


async def _find_stream(server: ScriptedServer, action: str):
    sessions = server.state.streams._sessions
    await wait_until_async(lambda: len(sessions) == (1 if action == "edit" else 2))
    return [*sessions.values()][-1]


async def test_another_server_knows_the_limit_and_the_pause(tmp_path):
    (tmp_path / "journal").mkdir()
    async with (
        journaled(tmp_path / "journal", "a" * 50) as server,
        Running(server, "/completion", durable=True, n_predict=40) as running,
    ):
        await running.say(4)
        assert (await running.control("limit", n_predict=12))["success"]
        assert (await running.control("pause"))["success"]
        stream = await _find_stream(server, "edit")
        await server.state.journal.run(lambda: None)  # all is written
        killed = shutil.copytree(tmp_path / "journal", tmp_path / "killed")
        assert (await running.control("stop"))["success"]
    async with journaled(killed, "b" * 50) as again:
        await wait_until_async(lambda: bool(again.state.live._live))
        (live,) = set(again.state.live._live.values())
        await wait_until_async(lambda: live.timer is not None and again.engine.is_waiting)
        assert live.choices[0].done is None
        ((_, id),) = again.state.live._live
        resume = {"id": id, "action": "resume"}
        assert (await post(again, CHAT + "/control", json=resume))["success"]
        followed = await again.http.get("/v1/stream", params={"conv_id": stream.id})
    last = events(followed.text)[-1]
    assert (last["tokens_predicted"], last["stop_type"]) == (12, "limit")
