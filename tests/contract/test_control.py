"""Control of answers while they are generated."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from corral.generate import live_answers
from tests.contract.inline import Server, post
from tests.contract.scripted import ScriptedServer

CHAT, CONTROL = "/v1/chat/completions", "/v1/chat/completions/control"
HELLO = [{"role": "user", "content": "hello"}]
THINKING = "<think>" + "x" * 3000 + "</think>yes"


@pytest.fixture
def server():
    return ScriptedServer()


class Running:
    """A request on its way; the engine takes one step whenever the test asks for it."""

    def __init__(
        self, server: Server, path: str, id: str, headers: dict[str, str] | None = None, **body: Any
    ):
        self.server, self.id = server, id
        self.server.engine.is_paused = True
        headers = {"X-Request-Id": id, **(headers or {})}
        self.response = asyncio.ensure_future(server.http.post(path, json=body, headers=headers))

    async def __aenter__(self):
        while not self.server.engine.n_tasks:
            await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.response.cancel()

    def step(self, n: int) -> None:
        for _ in range(n):
            self.server.engine.step()

    async def control(self, action: str, headers: dict[str, str] | None = None, **more: Any) -> dict:
        body = {"id": self.id, "action": action, **more}
        return await post(self.server, CONTROL, json=body, headers=headers)

    async def answer(self) -> dict:
        self.server.engine.is_paused = False
        return (await self.response).json()


async def test_stop_ends_an_answer_as_it_is(server):
    server.say("hello world, this is long" * 20)
    async with Running(server, CHAT, "r1", messages=HELLO) as running:
        running.step(6)
        assert await running.control("stop") == {"success": True}
        choice = (await running.answer())["choices"][0]
        assert choice["finish_reason"] == "stop"
        assert "hello world, this is long".startswith(choice["message"]["content"])
        assert choice["message"]["content"]
    assert (await running.control("stop"))["success"] is False


async def test_stop_ends_a_request_that_waits_for_a_slot(server):
    server.say("a" * 1000)
    async with (
        Running(server, CHAT, "r1", messages=HELLO),
        Running(server, CHAT, "r2", messages=HELLO) as two,
    ):
        while server.engine.n_tasks < 2:
            await asyncio.sleep(0)
        assert (await two.control("stop"))["success"]
        server.engine.step()
        assert server.engine.n_tasks == 1
        assert (await two.response).json()["choices"][0]["message"]["content"] == ""


async def test_the_limit_can_be_moved(server):
    server.say("a" * 300)
    async with Running(server, "/completion", "r1", prompt="x", n_predict=5) as running:
        running.step(3)
        assert (await running.control("limit", n_predict=20))["success"]
        answer = await running.answer()
    assert (answer["tokens_predicted"], answer["stop_type"]) == (20, "limit")
    async with Running(server, "/completion", "r1", prompt="x", n_predict=50) as running:
        running.step(10)
        assert (await running.control("limit", max_tokens=3))["success"]
        n = (await running.answer())["tokens_predicted"]
    assert 3 <= n < 15
    error = await post(server, CONTROL, 400, json={"id": "r1", "action": "limit"})
    assert error["param"] == "n_predict"


async def test_the_limit_stays_within_the_servers():
    server = ScriptedServer(max_predict=8)
    server.say("a" * 300)
    async with Running(server, "/completion", "r1", prompt="x", n_predict=5) as running:
        running.step(2)
        assert (await running.control("limit", n_predict=-1))["success"]
        assert (await running.answer())["tokens_predicted"] == 8


async def test_a_paused_answer_waits_and_goes_on(server):
    server.say("abcdefghij")
    plain = await server.complete(prompt="x")
    async with Running(server, "/completion", "r1", prompt="x") as running:
        running.step(4)
        assert (await running.control("pause"))["success"]
        running.step(5)
        assert server.engine.is_waiting
        assert not running.response.done()
        assert (await running.control("resume"))["success"]
        assert (await running.answer())["content"] == plain["content"]


async def test_a_pause_ends_by_itself(server, monkeypatch):
    monkeypatch.setattr(live_answers, "MAX_PAUSE_S", 0.01)
    server.say("abc")
    async with Running(server, "/completion", "r1", prompt="x") as running:
        running.step(2)
        assert (await running.control("pause"))["success"]
        assert (await running.answer())["content"] == "abc"


@pytest.mark.parametrize("path", [CHAT, "/completion"])
async def test_reasoning_can_be_ended(server, path):
    server.say(THINKING)
    tags = {"reasoning_budget_start_tag": "<think>", "reasoning_budget_end_tags": ["</think>"]}
    body: dict[str, Any] = {"messages": HELLO} if path == CHAT else {"prompt": "x", **tags}
    async with Running(server, path, "r1", **body, n_predict=60, reasoning_control=True) as running:
        running.step(15)
        assert await running.control("reasoning_end") == {"success": True}
        answer = await running.answer()
    if path == CHAT:
        message = answer["choices"][0]["message"]
        assert 0 < len(message["reasoning_content"]) < 30
    else:
        assert answer["content"].index("</think>") < 40


async def test_reasoning_cannot_be_ended_unless_the_request_allows_it(server):
    server.say(THINKING)
    async with Running(server, CHAT, "r1", messages=HELLO, n_predict=40) as running:
        running.step(10)
        refused = await running.control("reasoning_end")
    assert (refused["success"], "not enabled" in refused["message"]) == (False, True)


async def test_an_answers_own_id_works(server):
    server.say("a" * 500)
    response = asyncio.ensure_future(server.http.post(CHAT, json={"messages": HELLO, "n": 2}))
    server.engine.is_paused = True
    while len(server.services.live._live) < 2:
        await asyncio.sleep(0)
    (id,) = [id for _, id in server.services.live._live if id.startswith("chatcmpl")]
    assert (await post(server, CONTROL, json={"id": id, "action": "stop"}))["success"]
    server.engine.is_paused = False
    assert [c["finish_reason"] for c in (await response).json()["choices"]] == ["stop", "stop"]
    assert not server.services.live._live


@pytest.mark.parametrize("body", [{}, {"id": "x"}, {"id": "", "action": "stop"}, {"id": "x", "action": "y"}])
async def test_what_is_no_control(server, body):
    await post(server, CONTROL, 400, json=body)


async def test_another_keys_answer_is_unknown():
    server = ScriptedServer(api_keys=("one", "two"))
    server.say("a" * 500)
    one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
    async with Running(server, CHAT, "r1", one, messages=HELLO) as running:
        running.step(5)
        unknown = await running.control("stop", {**two})
        assert (
            unknown
            == await running.control("stop", two, id="nothing")
            == {
                "success": False,
                "message": "no active completion for this id",
            }
        )
        assert (await running.control("stop", one))["success"]
        assert (await running.answer())["choices"][0]["finish_reason"] == "stop"
