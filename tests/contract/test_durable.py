"""Durable requests: events with ids, clients that come back, and another server that continues.

A copy of the journal at some moment is what a server leaves that is killed then.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest

from corral.api import answer_log
from corral.core.task import Task
from corral.features.durable import work as durable
from corral.features.durable.runner import start_durable
from corral.storage.journal_record import encode_opening, read_history
from tests.contract.inline import Server
from tests.tools.wait import wait_until_async

BODY: dict[str, Any] = {"prompt": "a b c", "n_predict": 30, "stream": True, "seed": 1, "durable": True}
CHAT = {**BODY, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 30}
PATHS = ["/completion", "/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"]
_FORMER = Path(__file__).with_name("journal_0_12")  # as a server of version 0.12 left it that was killed
_FORMER_CHAT = ":twVyZrRFMR.lLI LjiACydDC.msZb"
_FORMER_TEXTS = {"conversation": "KMwBtYlp!xYJI;c\nzZzIa\nWP:BIoyn"}
_TIMES = re.compile(rb'"[a-z_]*(ms|second|completed_at)":[0-9.e+-]+')


def body_for(path: str, **more: Any) -> dict[str, Any]:
    asked = {"input": "hi"} if path == "/v1/responses" else {}
    return {**CHAT, **asked, **more}


def ids(content: bytes) -> list[str]:
    return [line.removeprefix("id: ") for line in content.decode().split("\n") if line.startswith("id: ")]


def timeless(content: bytes) -> bytes:
    """Without times, and without ids of events, since those at the end depend on them."""
    return re.sub(rb"id: .*\n", b"", _TIMES.sub(b"", content))


@contextlib.asynccontextmanager
async def continued(folder: Path, **settings: Any) -> AsyncIterator[Server]:
    """A server that finds this journal."""
    server = Server(journal=str(folder), chat_template="chatml", **settings)
    runner = start_durable(server.services, server.app.stored_work.run, lambda: True)
    assert runner is not None
    try:
        yield server
    finally:
        assert server.services.journal is not None
        server.services.journal.stop()
        await runner.close()
        await server.services.streams.close()
        await server.services.responses.close()
        await server.services.journal.close()


def n_recorded(folder: Path) -> int:
    """The number of results in a journal."""
    found = [read_history(path.read_bytes()) for path in folder.glob("*/*.journal")]
    return sum(len(history.results) for history in found if history is not None)


async def copy_midway(
    server: Server, tmp_path: Path, path: str, body: dict[str, Any], **headers: str
) -> tuple[Path, bytes]:
    """Ask; return the journal as it is in the middle of the answer, and the whole answer."""
    asking = asyncio.create_task(server.http.post(path, json=body, headers=headers))
    await wait_until_async(lambda: n_recorded(tmp_path / "journal") >= 8)
    server.engine.is_paused = True
    kept = shutil.copytree(tmp_path / "journal", tmp_path / "killed")
    server.engine.is_paused = False
    response = await asking
    assert response.status_code == 200, response.text
    return kept, response.content


@pytest.fixture
async def server(tmp_path):
    (tmp_path / "journal").mkdir()
    async with continued(tmp_path / "journal") as server:
        yield server


@pytest.mark.parametrize("path", PATHS)
async def test_a_client_continues_after_any_event(path):
    server = Server(chat_template="chatml")
    body = body_for(path)
    response = await server.http.post(path, json=body)
    assert response.status_code == 200, response.text
    known = ids(response.content)
    assert len(known) == response.content.count(b"\n\n") > 10
    for i in (0, 3, len(known) - 1):
        rest = await server.http.post(path, json=body, headers={"last-event-id": known[i]})
        assert ids(rest.content) == known[i + 1 :]
        assert response.content.endswith(rest.content)
    stream = known[0].rpartition(".")[0]
    assert response.headers["x-conversation-id"] == stream
    again = await server.http.get("/v1/stream", params={"conv_id": stream})
    assert again.content == response.content


async def test_the_header_asks_too_and_others_get_what_they_always_got():
    server = Server()
    body = {**BODY, "durable": False}
    plain = await server.http.post("/completion", json=body, headers={"last-event-id": "7"})
    assert ids(plain.content) == []
    numbered = await server.http.post("/completion", json=body, headers={"x-durable": "true"})
    assert len(ids(numbered.content)) == plain.content.count(b"\n\n")
    whole = await server.complete(**{**BODY, "stream": False})
    assert any("'durable'" in warning for warning in whole["warnings"])


async def test_an_error_instead_of_a_stream_is_whole():
    server = Server()
    headers = {"x-conversation-id": "tea"}
    body = {**BODY, "id_slot": 99}
    plain = await server.http.post("/completion", json={**body, "durable": False})
    refused = await server.http.post("/completion", json=body, headers=headers)
    assert refused.status_code == plain.status_code == 400
    assert refused.json()["error"]["message"] == plain.json()["error"]["message"]


async def test_it_goes_on_without_its_client_unlike_others():
    server = Server()
    server.engine.is_paused = True
    asked = [
        asyncio.create_task(server.http.post("/completion", json={**BODY, "durable": is_durable}))
        for is_durable in (True, False)
    ]
    await wait_until_async(lambda: server.engine.n_tasks == 2)
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    await wait_until_async(lambda: server.engine.n_tasks == 1)
    server.engine.is_paused = False
    await wait_until_async(lambda: server.engine.n_tasks == 0)


async def test_keys_have_their_own(tmp_path: Path):
    (tmp_path / "keys").write_text("amy:a\nben:b\n")
    server = Server(api_key_file=str(tmp_path / "keys"))
    mine = await server.http.post("/completion", json=BODY, headers={"x-api-key": "a"})
    last = ids(mine.content)[2]
    for key, status in (("a", 200), ("b", 404)):
        headers = {"x-api-key": key, "last-event-id": last}
        assert (await server.http.post("/completion", json=BODY, headers=headers)).status_code == status
        params = {"conv_id": last.rpartition(".")[0]}
        assert (await server.http.get("/v1/stream", params=params, headers=headers)).status_code == status


async def test_a_conversation_has_ids_if_it_asks():
    server = Server()
    headers = {"x-conversation-id": "tea"}
    sent = (await server.http.post("/completion", json=BODY, headers=headers)).content
    last = ids(sent)[4]
    assert last.startswith("tea.")
    rest = await server.http.post("/completion", json=BODY, headers={**headers, "last-event-id": last})
    assert sent.endswith(rest.content)
    assert ids(rest.content) == ids(sent)[5:]


async def test_a_silent_stream_sends_signs_of_life():
    server = Server()
    server.engine.is_paused = True
    pinged = answer_log.AnswerLog("one")
    pinged.ping_s = 0.01
    parts = pinged.follow()
    assert await anext(parts) == b": \n\n"
    await parts.aclose()


@pytest.mark.parametrize("path", PATHS)
async def test_another_server_sends_the_same_bytes(server, tmp_path, path):
    kept, whole = await copy_midway(server, tmp_path, path, body_for(path))
    stream = ids(whole)[0].rpartition(".")[0]
    async with continued(kept) as other:
        again = await other.http.get("/v1/stream", params={"conv_id": stream})
        assert timeless(again.content) == timeless(whole)
        assert ids(again.content)[:-2] == ids(whole)[:-2]
        (task,) = other.engine.submitted
        assert isinstance(task, Task)
        assert 0 < len(task.resume) < 30
        last = ids(whole)[3]
        rest = await other.http.post(path, json=body_for(path), headers={"last-event-id": last})
        assert timeless(whole).endswith(timeless(rest.content))


async def test_what_an_earlier_server_admitted_continues_at_the_limit_and_counts(tmp_path):
    (tmp_path / "keys").write_text("amy,tpd=1,concurrent=1:a\n")
    (tmp_path / "journal").mkdir()
    options = {"api_key_file": str(tmp_path / "keys"), "ledger": str(tmp_path / "ledger")}
    key = {"x-api-key": "a"}
    async with continued(tmp_path / "journal", **options) as server:
        kept, answer = await copy_midway(server, tmp_path, "/completion", BODY, **key)
        await server.services.telemetry.ledger.close()
    async with continued(kept, **options) as server:
        (id,) = {log.id for log in server.services.streams._logs.values()}
        response = await server.http.get("/v1/stream", params={"conv_id": id}, headers=key)
        assert timeless(response.content) == timeless(answer)
        assert server.engine.submitted
        n = len(server.engine.submitted)
        assert (await server.http.post("/completion", json=BODY, headers=key)).status_code == 429
        assert len(server.engine.submitted) == n
        await server.services.telemetry.ledger.close()


async def test_a_request_of_a_former_version_continues(server, tmp_path):
    kept, whole = await copy_midway(server, tmp_path, "/completion", BODY)
    (path,) = kept.glob("*/*.journal")
    history = read_history(data := path.read_bytes())
    assert history is not None
    body = orjson.dumps({**BODY, "receipt": True})
    opening = msgspec.structs.replace(history.opening, body=body)
    path.write_bytes(encode_opening(opening) + data[len(encode_opening(history.opening)) :])
    async with continued(kept) as other:
        again = await other.http.get("/v1/stream", params={"conv_id": ids(whole)[0].rpartition(".")[0]})
        assert timeless(again.content) == timeless(whole)
        assert other.engine.submitted


@pytest.mark.parametrize("kind", ["conversation", "chat", "messages", "response"])
async def test_what_version_0_12_has_begun_continues(tmp_path, kind):
    data = (_FORMER / f"{kind}.journal").read_bytes()
    history = read_history(data)
    assert history is not None
    assert not history.is_complete
    opening = history.opening
    name = hashlib.blake2b(opening.id.encode(), digest_size=16).hexdigest()
    (tmp_path / "everybody").mkdir()
    (tmp_path / "everybody" / f"{name}.journal").write_bytes(data)
    async with continued(tmp_path) as server:
        if kind == "response":
            await wait_until_async(lambda: server.engine.n_tasks or server.engine.submitted)
            path, params = f"/v1/responses/{opening.id}", {"stream": "true"}
        else:
            path, params = "/v1/stream", {"conv_id": opening.id}
        content = (await server.http.get(path, params=params)).content
        assert text_of(content) == _FORMER_TEXTS.get(kind, _FORMER_CHAT)
        (task,) = server.engine.submitted
        assert isinstance(task, Task)
        assert task.resume == history.tokens(0) != []


def text_of(content: bytes) -> str:
    """What the model has said in a stream of any API."""
    texts = []
    for line in content.splitlines():
        event = orjson.loads(line.removeprefix(b"data: ")) if line.startswith(b"data: {") else {}
        delta = event.get("delta", "")
        if event.get("choices"):
            texts.append(event["choices"][0]["delta"].get("content") or "")
        elif "content" in event:
            texts.append(event["content"])
        else:
            texts.append(delta if isinstance(delta, str) else delta.get("text", ""))
    return "".join(texts)


async def watch(server: Server, journal: Path, path: str, body: dict[str, Any]) -> list[tuple[int, bytes]]:
    """Ask; return how many bytes the journal had whenever the client got something, and what it had then."""
    seen: list[tuple[int, bytes]] = []
    asked = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if asked.is_set():
            await asyncio.Event().wait()
        asked.set()
        return {"type": "http.request", "body": orjson.dumps(body), "more_body": False}

    async def send(message: Any) -> None:
        n_bytes = sum(file.stat().st_size for file in journal.glob("*/*.journal"))
        seen.append((n_bytes, (seen[-1][1] if seen else b"") + message.get("body", b"")))

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
    }
    await server.app(scope, receive, send)
    return seen


async def follow_again(server: Server, seen: bytes) -> bytes:
    """The whole stream of which a client has seen this, from a server that continues it."""
    if known := ids(seen):
        params = {"conv_id": known[0].rpartition(".")[0]}
        return (await server.http.get("/v1/stream", params=params)).content
    found = re.search(rb"resp_[0-9a-f]{32}", seen)
    assert found is not None
    await wait_until_async(lambda: not server.services.responses.restoring)
    path = f"/v1/responses/{found[0].decode()}"
    return (await server.http.get(path, params={"stream": "true"})).content


@pytest.mark.parametrize(
    ("path", "more"), [("/completion", {}), ("/v1/responses", {}), ("/v1/responses", {"background": True})]
)
async def test_a_kill_after_any_byte_loses_nothing_that_a_client_has_seen(server, tmp_path, path, more):
    short = body_for(path, n_predict=4, max_tokens=4, **more)
    seen = await watch(server, tmp_path / "journal", path, short)
    assert server.services.journal is not None
    await server.services.journal.run(lambda: None)  # all is written
    (file,) = (tmp_path / "journal").glob("*/*.journal")
    data = file.read_bytes()
    continuations: dict[int, bytes] = {}  # by how much of the journal is whole
    for n in range(len(data) + 1):
        shown = max((content for size, content in seen if size <= n), key=len, default=b"")
        history = read_history(data[:n])
        if history is None:
            assert shown == b""
            continue
        if history.n_bytes not in continuations:
            folder = tmp_path / f"killed-{n}" / file.parent.name
            folder.mkdir(parents=True)
            (folder / file.name).write_bytes(data[:n])
            async with continued(folder.parent) as other:
                continuations[history.n_bytes] = await follow_again(other, seen[-1][1])
        assert timeless(continuations[history.n_bytes]).startswith(timeless(shown))
    assert len(continuations) > 5
    assert {text_of(content) for content in continuations.values()} == {text_of(seen[-1][1])} != {""}


async def test_choices_that_have_ended_are_not_evaluated_again(server, tmp_path):
    body = {**BODY, "n": 3}
    whole = (await server.http.post("/completion", json=body)).content
    kept = shutil.copytree(tmp_path / "journal", tmp_path / "killed")
    async with continued(kept) as other:
        again = await other.http.get("/v1/stream", params={"conv_id": ids(whole)[0].rpartition(".")[0]})
        assert again.content == whole
        assert other.engine.submitted == []


async def test_a_conversation_continues_too(server, tmp_path):
    body = {**BODY, "durable": False}
    headers = {"x-conversation-id": "tea"}
    kept, whole = await copy_midway(server, tmp_path, "/completion", body, **headers)
    async with continued(kept) as other:
        assert (await other.http.post("/v1/streams/lookup", json={"conversation_ids": ["tea"]})).json()
        for offset in (0, 500):
            params: dict[str, Any] = {"conv_id": "tea", "from": offset}
            rest = await other.http.get("/v1/stream", params=params)
            assert timeless(rest.content) == timeless(whole[offset:])


async def test_a_response_in_the_background_continues(server, tmp_path):
    body = {"input": "hi", "background": True, "stream": True, "max_output_tokens": 30, "seed": 1}
    kept, whole = await copy_midway(server, tmp_path, "/v1/responses", body)
    found = re.search(rb"resp_[0-9a-f]{32}", whole)
    assert found is not None
    path = f"/v1/responses/{found[0].decode()}"
    async with continued(kept) as other:
        await wait_until_async(lambda: other.engine.n_tasks or other.engine.submitted)
        rest = await other.http.get(path, params={"stream": "true", "starting_after": 4})
        expected = whole[whole.index(rest.content[:80]) :]
        assert timeless(rest.content) == timeless(expected)
        assert (await other.http.get(path)).json()["status"] == "incomplete"


async def test_another_build_says_so_and_another_model_does_not_continue(server, tmp_path, monkeypatch):
    kept, whole = await copy_midway(server, tmp_path, "/completion", BODY)
    second = shutil.copytree(kept, tmp_path / "second")
    params = {"conv_id": ids(whole)[0].rpartition(".")[0]}
    monkeypatch.setattr(durable, "BUILD", "b9-other")
    async with continued(kept) as other:
        again = await other.http.get("/v1/stream", params=params)
        assert b"b9-other" in again.content
    async with continued(second, alias="another") as other:
        assert (await other.http.get("/v1/stream", params=params)).status_code == 404
        assert other.engine.submitted == []


async def test_what_is_stopped_does_not_continue(server, tmp_path):
    asking = asyncio.create_task(
        server.http.post("/completion", json={**BODY, "n_predict": 400}, headers={"x-conversation-id": "tea"})
    )
    await wait_until_async(lambda: n_recorded(tmp_path / "journal") >= 8)
    await server.http.delete("/v1/stream", params={"conv_id": "tea"})
    await asyncio.gather(asking, return_exceptions=True)
    await server.services.journal.run(lambda: None)
    kept = shutil.copytree(tmp_path / "journal", tmp_path / "killed")
    async with continued(kept) as other:
        assert (await other.http.get("/v1/stream", params={"conv_id": "tea"})).status_code == 404


async def test_a_conversation_gets_the_items_of_a_restored_response_once(tmp_path):
    (tmp_path / "journal").mkdir()
    stored = {"responses_path": str(tmp_path / "responses")}
    (tmp_path / "responses").mkdir()
    async with continued(tmp_path / "journal", **stored) as server:
        conversation = (await server.http.post("/v1/conversations", json={})).json()["id"]
        place = f"/v1/conversations/{conversation}/items"
        body = {"input": "hi", "conversation": conversation, "stream": True, "durable": True}
        answered = await server.http.post("/v1/responses", json={**body, "max_output_tokens": 8})
        assert answered.status_code == 200, answered.text
        before = (await server.http.get(place)).json()["data"]
        assert len(before) == 2
        assert server.services.journal is not None
        await server.services.journal.run(lambda: None)  # all is written
        kept = shutil.copytree(tmp_path / "journal", tmp_path / "kept")
    async with continued(kept, **stored) as again:
        stream = answered.headers["x-conversation-id"]
        followed = await again.http.get("/v1/stream", params={"conv_id": stream})
        assert timeless(followed.content) == timeless(answered.content)
        assert (await again.http.get(place)).json()["data"] == before
