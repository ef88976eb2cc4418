"""Streams with `X-Conversation-Id`: they outlive their client, and others can follow them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from corral.api import answer_log
from tests.contract.inline import Server
from tests.tools.wait import wait_until_async

HEADERS = {"x-conversation-id": "tea"}
BODY = {"prompt": "a b c", "n_predict": 30, "stream": True, "seed": 1}


async def follow(
    server: Server, offset: int = 0, id: str = "tea", status: int = 200, **headers: str
) -> bytes:
    response = await server.http.get("/v1/stream", params={"conv_id": id, "from": offset}, headers=headers)
    assert response.status_code == status, response.text
    return response.content


async def lookup(server: Server, *ids: str, **headers: str) -> list[dict]:
    response = await server.http.post(
        "/v1/streams/lookup", json={"conversation_ids": list(ids)}, headers=headers
    )
    return response.json()


@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions"])
async def test_a_stream_can_be_read_again_from_any_byte(path):
    server = Server(chat_template="chatml")
    body = {**BODY, "messages": [{"role": "user", "content": "hi"}]}
    response = await server.http.post(path, json=body, headers=HEADERS)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.content.startswith(b"data: ")
    for offset in (0, 1, len(response.content) // 2, len(response.content)):
        assert await follow(server, offset) == response.content[offset:]
    (known,) = await lookup(server, "tea", "coffee")
    assert (known["is_done"], known["total_bytes"]) == (True, len(response.content))
    await follow(server, len(response.content) + 1, status=400)


async def test_it_continues_without_its_client():
    server = Server()
    server.engine.is_paused = True
    first = asyncio.create_task(server.http.post("/completion", json=BODY, headers=HEADERS))
    await wait_until_async(lambda: server.engine.n_tasks)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    server.engine.is_paused = False
    await wait_until_async(lambda: not server.engine.n_tasks)
    undisturbed = await server.http.post("/completion", json=BODY)
    kept = await follow(server)
    assert kept.count(b"data: ") == undisturbed.content.count(b"data: ")


async def test_followers_get_what_is_still_to_come():
    server = Server()
    first = asyncio.create_task(server.http.post("/completion", json=BODY, headers=HEADERS))
    await wait_until_async(lambda: server.engine.n_tasks)
    log = server.services.streams.find("", "tea")
    assert log is not None
    await log.started()
    others = await asyncio.gather(follow(server), follow(server))
    assert set(others) == {(await first).content}


async def test_stop_and_replace():
    server = Server()
    server.engine.is_paused = True
    first = asyncio.create_task(server.http.post("/completion", json=BODY, headers=HEADERS))
    await wait_until_async(lambda: server.engine.n_tasks)
    second = asyncio.create_task(server.http.post("/completion", json=BODY, headers=HEADERS))
    await wait_until_async(lambda: len(server.engine.submitted) == 2)
    assert server.engine.n_tasks == 1
    await follow(server, status=503)  # it has not begun
    for _ in range(2):
        response = await server.http.delete("/v1/stream", params={"conv_id": "tea"})
        assert response.status_code == 204
    assert server.engine.n_tasks == 0
    assert await lookup(server, "tea") == []
    assert [answer.status_code for answer in await asyncio.gather(first, second)] == [400, 400]
    await follow(server, status=404)


async def test_keys_have_their_own(tmp_path: Path):
    (tmp_path / "keys").write_text("amy:a\nben:b\n")
    server = Server(api_key_file=str(tmp_path / "keys"))
    await server.http.post("/completion", json=BODY, headers={**HEADERS, "x-api-key": "a"})
    assert await lookup(server, "tea", **{"x-api-key": "a"})
    assert await lookup(server, "tea", **{"x-api-key": "b"}) == []
    await follow(server, 0, "tea", 404, **{"x-api-key": "b"})
    await server.http.delete("/v1/stream", params={"conv_id": "tea"}, headers={"x-api-key": "b"})
    assert await lookup(server, "tea", **{"x-api-key": "a"})


async def test_only_streams_are_kept():
    server = Server()
    whole = await server.http.post("/completion", json={**BODY, "stream": False}, headers=HEADERS)
    assert whole.json()["content"]
    bad = await server.http.post("/completion", json={**BODY, "n_predict": "x"}, headers=HEADERS)
    assert bad.status_code == 400
    assert await lookup(server, "tea") == []


async def test_old_bytes_and_old_streams_are_dropped(monkeypatch):
    monkeypatch.setattr(answer_log, "MAX_BYTES", 1000)
    server = Server()
    undisturbed = await server.http.post("/completion", json=BODY)
    await asyncio.gather(
        server.http.post("/completion", json=BODY, headers=HEADERS), return_exceptions=True
    )  # a client that is too slow is cut off
    await wait_until_async(lambda: not server.engine.n_tasks)
    (known,) = await lookup(server, "tea")
    kept = await follow(server, known["total_bytes"] - 1000)
    assert len(kept) == 1000
    assert kept[-20:] == undisturbed.content[-20:]
    await follow(server, 0, status=400)
    monkeypatch.setattr(answer_log, "KEPT_S", -1)
    assert await lookup(server, "tea") == []


@pytest.mark.parametrize("bound", ["MAX_LOGS", "TOTAL_BYTES"])
async def test_a_key_with_many_streams_forgets_its_own_first(tmp_path: Path, monkeypatch, bound):
    (tmp_path / "keys").write_text("amy:a\nben:b\n")
    server = Server(api_key_file=str(tmp_path / "keys"))

    async def stream(key: str, id: str) -> int:
        headers = {"x-conversation-id": id, "x-api-key": key}
        return len((await server.http.post("/completion", json=BODY, headers=headers)).content)

    n_bytes = await stream("a", "first")
    monkeypatch.setattr(answer_log, bound, 8 if bound == "MAX_LOGS" else 8 * n_bytes + n_bytes // 2)
    for i in range(3):
        await stream("a", f"mine-{i}")
    for i in range(20):
        await stream("b", f"other-{i}")
    known = await lookup(server, "first", *(f"mine-{i}" for i in range(3)), **{"x-api-key": "a"})
    assert len(known) == 4, "half is hers"
    others = [f"other-{i}" for i in range(20)]
    assert len(await lookup(server, *others, **{"x-api-key": "b"})) in (4, 5)
    await stream("a", "one-more")
    assert await lookup(server, "first", **{"x-api-key": "a"}) == [], "then her oldest goes"
    assert len(await lookup(server, *others, **{"x-api-key": "b"})) in (4, 5)


async def test_variants_of_models_are_found():
    server = Server()
    await server.http.post("/completion", json=BODY, headers={"x-conversation-id": "tea::m"})
    (found,) = await lookup(server, "tea")
    assert found["conversation_id"] == "tea::m"
    assert (await server.http.get("/v1/stream")).status_code == 400


async def test_a_client_continues_after_the_last_event():
    server = Server()
    sent = (await server.http.post("/completion", json=BODY, headers=HEADERS)).content
    params = {"conv_id": "tea", "ids": "true"}
    numbered = (await server.http.get("/v1/stream", params=params)).content
    events = numbered.split(b"\n\n")[:-1]
    assert b"".join(event.partition(b"\n")[2] + b"\n\n" for event in events) == sent
    last = events[3].partition(b"\n")[0].removeprefix(b"id: ").decode()
    rest = await server.http.get("/v1/stream", params={"conv_id": "tea"}, headers={"last-event-id": last})
    assert rest.content.split(b"\n\n")[:-1] == events[4:]
    bad = await server.http.get("/v1/stream", params=params, headers={"last-event-id": "x"})
    assert bad.status_code == 400
