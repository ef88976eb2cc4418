"""Several servers with the same storage: each serves what the others have, and continues it if they die."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.system.batch import client_of, finish, lines, read, submit
from tests.system.durable import CHAT, MESSAGES, Reader, by_choice
from tests.system.process import START_S, CorralProcess, wait_until

KEYS = ("one", "two")
LONG: dict[str, Any] = {"ignore_eos": True, "seed": 1, "cache_prompt": False}
N_LONG = 14_000


class Pair:
    """Mutable: two servers, and clients of each."""

    def __init__(self, *options: object) -> None:
        self._options = options
        self.servers = [CorralProcess(*options, wait=False) for _ in range(2)]
        for server in self.servers:
            server.url = server.wait_for(r"ready on (\S+)")

    def http(self, index: int, key: str = "one") -> httpx.Client:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.servers[index].url, headers=headers, timeout=START_S)

    def kill(self, index: int) -> None:
        self.servers[index].kill()

    def replace(self, index: int) -> None:
        self.servers[index] = CorralProcess(*self._options)

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


@pytest.fixture(scope="module")
def pair(tiny, tmp_path_factory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("shared")
    names = ("chats", "responses", "batches", "journal", "slot-save-path", "shared-storage")
    for name in names:
        (folder / name).mkdir()
    storage = [part for name in names for part in (f"--{name}", folder / name)]
    served = ("-np", 2, "-c", 32768, "--slots", "--no-warmup", "--batch-exact", "--api-key", ",".join(KEYS))
    pair = Pair("-m", tiny, *served, *storage, "--ledger", folder / "usage.sqlite")
    yield pair
    pair.stop()


@pytest.fixture
def both(pair) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    with pair.http(0) as first, pair.http(1) as second:
        yield first, second


def test_what_one_stores_the_other_has_at_once(both, pair):
    first, second = both
    id = "0" * 32
    saved = first.put(f"/chats/{id}", json={"title": "hello", "messages": {}}).json()
    assert [chat["id"] for chat in second.get("/chats").json()] == [id]
    stale = {"if-match": '"other"'}
    assert second.put(f"/chats/{id}", json={"title": "x", "messages": {}}, headers=stale).status_code == 409
    assert second.get(f"/chats/{id}").json()["revision"] == saved["revision"]
    assert second.delete(f"/chats/{id}").status_code == 200
    assert first.get(f"/chats/{id}").status_code == 404

    assert first.post("/sessions/mine?action=save&slot=0").status_code == 200
    assert [each["id"] for each in second.get("/sessions").json()] == ["mine"]
    assert second.post("/sessions/mine?action=restore&slot=1").status_code == 200
    assert second.post("/sessions/mine?action=fork&to=yours").status_code == 200
    assert second.post("/sessions/mine?action=remove").status_code == 200
    assert [each["id"] for each in first.get("/sessions").json()] == ["yours"]

    with pair.http(1, "two") as stranger:
        file = first.post("/v1/files", files={"file": b"{}"}, data={"purpose": "user_data"}).json()["id"]
        assert second.get(f"/v1/files/{file}/content").content == b"{}"
        assert stranger.get(f"/v1/files/{file}").status_code == 404
        assert stranger.get("/chats").json() == []
    assert second.delete(f"/v1/files/{file}").status_code == 200
    assert first.get(f"/v1/files/{file}").status_code == 404


def test_responses_continue_each_other_wherever_they_are_asked(both, pair):
    first, second = both
    asked = {"input": "hello", "max_output_tokens": 4}
    with pair.http(1, "two") as stranger:
        last = None
        for i in range(10):
            ask = {**asked, **({"previous_response_id": last} if last else {})}
            answer = both[i % 2].post("/v1/responses", json=ask)
            assert answer.status_code == 200, answer.text
            last = answer.json()["id"]
        assert stranger.get(f"/v1/responses/{last}").status_code == 404
    assert first.delete(f"/v1/responses/{last}").status_code == 200
    assert second.get(f"/v1/responses/{last}").status_code == 404


def test_a_conversation_loses_nothing(both):
    """Both servers add to it at the same time."""
    first, second = both
    id = first.post("/v1/conversations", json={}).json()["id"]

    async def add() -> None:
        async with contextlib.AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(
                    httpx.AsyncClient(base_url=each.base_url, headers=each.headers, timeout=START_S)
                )
                for each in both
            ]
            item = {"role": "user", "content": "hi"}
            answers = await asyncio.gather(
                *(
                    clients[i % 2].post(f"/v1/conversations/{id}/items", json={"items": [item]})
                    for i in range(20)
                ),
                *(
                    each.post(
                        "/v1/responses", json={"input": "x", "conversation": id, "max_output_tokens": 2}
                    )
                    for each in clients
                ),
            )
            assert [answer.status_code for answer in answers] == [200] * 22

    asyncio.run(add())
    for each in both:
        page = each.get(f"/v1/conversations/{id}/items", params={"limit": 100}).json()
        assert len({item["id"] for item in page["data"]}) == 24
    assert second.post(f"/v1/conversations/{id}", json={"metadata": {"a": "b"}}).status_code == 200
    assert first.get(f"/v1/conversations/{id}").json()["metadata"] == {"a": "b"}
    assert first.delete(f"/v1/conversations/{id}").status_code == 200
    assert second.get(f"/v1/conversations/{id}").status_code == 404


def test_usage_is_added_up(pair):
    """With a key that no other test generates with."""

    def n_requests(client: httpx.Client) -> int:
        return sum(entry["requests"] for entry in client.get("/v1/usage").json()["data"])

    with pair.http(0, "two") as first, pair.http(1, "two") as second:
        for client in (first, second, first):
            assert client.post("/completion", json={"prompt": "a", "n_predict": 1}).status_code == 200
        wait_until(lambda: n_requests(first) == n_requests(second) == 3)


def pause(client: httpx.Client, begun: bytes) -> str:
    """Pause an answer, so that it does not end; returns its id."""
    id: str = json.loads(begun.split(b"\n")[0].removeprefix(b"data: "))["id"]
    assert client.post(f"{CHAT}/control", json={"id": id, "action": "pause"}).json()["success"]
    return id


def test_what_runs_at_one_is_followed_and_stopped_at_the_other(both, pair):
    first, second = both
    ask = {"messages": MESSAGES, "stream": True, "max_tokens": N_LONG, **LONG}
    conversation = {"conv_id": "talk ü/1"}
    headers = {b"x-conversation-id": conversation["conv_id"].encode("latin-1")}
    with first.stream("POST", CHAT, json=ask, headers=headers) as stream:
        parts = stream.iter_raw()
        begun = next(parts)
        id = pause(second, begun)
        with second.stream("GET", "/v1/stream", params=conversation) as followed:
            assert followed.status_code == 200
            assert next(followed.iter_raw()).startswith(begun[:40])
        looked = second.post("/v1/streams/lookup", json={"conversation_ids": [conversation["conv_id"]]})
        assert [each["is_done"] for each in looked.json()] == [False]
        with pair.http(1, "two") as stranger:
            assert stranger.get("/v1/stream", params=conversation).status_code == 404
            control = {"id": id, "action": "stop"}
            assert not stranger.post(f"{CHAT}/control", json=control).json()["success"]
        assert second.post(f"{CHAT}/control", json=control).json()["success"]
        assert b"".join(parts).endswith(b"data: [DONE]\n\n")
    with second.stream("POST", CHAT, json=ask, headers=headers) as stream:  # takes the place of the first
        pause(first, next(stream.iter_raw()))
        looked = first.post("/v1/streams/lookup", json={"conversation_ids": [conversation["conv_id"]]})
        assert [each["is_done"] for each in looked.json()] == [False]
        assert first.delete("/v1/stream", params=conversation).status_code == 204
    assert second.get("/v1/stream", params=conversation).status_code == 404

    with first.stream("POST", CHAT, json=ask, headers=headers) as stream:
        next(stream.iter_raw())
        os.kill(pair.servers[0].process.pid, signal.SIGSTOP)
        try:  # neither gone nor able to answer: it keeps what it has
            assert second.get("/v1/stream", params=conversation).status_code == 503
        finally:
            os.kill(pair.servers[0].process.pid, signal.SIGCONT)
        with second.stream("GET", "/v1/stream", params=conversation) as followed:
            assert followed.status_code == 200
        assert second.delete("/v1/stream", params=conversation).status_code == 204


def test_a_response_in_the_background(both):
    first, second = both
    ask = {"input": "hello", "background": True, "max_output_tokens": N_LONG, "ignore_eos": True}
    id = first.post("/v1/responses", json=ask).json()["id"]
    assert second.get(f"/v1/responses/{id}").json()["status"] in ("queued", "in_progress")
    assert second.post("/v1/responses", json={"input": "x", "previous_response_id": id}).status_code == 400
    with second.stream("GET", f"/v1/responses/{id}", params={"stream": "true"}) as events:
        assert next(events.iter_raw()).startswith(b"event: response.created")
    assert second.post(f"/v1/responses/{id}/cancel").json()["status"] == "cancelled"
    assert first.get(f"/v1/responses/{id}").json()["status"] == "cancelled"


def test_a_batch_is_cancelled_anywhere(pair):
    with client_of(pair.servers[0]) as first, client_of(pair.servers[1]) as second:
        batch = submit(first, lines(1000, max_tokens=40, ignore_eos=True))
        wait_until(lambda: (second.batches.retrieve(batch.id).request_counts or batch).completed > 0)
        with pytest.raises(openai.ConflictError):
            second.files.delete(batch.input_file_id)
        assert second.batches.cancel(batch.id).status in ("cancelling", "cancelled")
        assert finish(second, batch.id).status == "cancelled"
        assert first.batches.retrieve(batch.id).status == "cancelled"


class Somewhere:
    """Where a client finds a server: the other one, when the first is lost."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self.is_up = asyncio.Event()
        self.is_up.set()

    @property
    def url(self) -> str:
        lives = [server for server in self._pair.servers if server.process.poll() is None]
        return lives[0].url


async def test_work_continues_when_its_server_is_killed(pair):
    """A stream, a response in the background and a batch, each by one of those that live."""
    key = {"authorization": "Bearer one"}
    place = Somewhere(pair)
    body = {"prompt": "hello", "n_predict": 600, "ignore_eos": True, "seed": 1}
    undisturbed = Reader(place, "/completion", body, **key)
    await undisturbed.task
    with pair.http(0) as first, pair.http(1) as second, client_of(pair.servers[1]) as batches:
        ask = {"input": "hello", "background": True, "max_output_tokens": 600, "ignore_eos": True}
        response = first.post("/v1/responses", json=ask).json()["id"]
        with client_of(pair.servers[0]) as lost:
            batch = submit(lost, lines(60, max_tokens=8, ignore_eos=True))
        other = submit(batches, lines(4))
        disturbed = Reader(place, "/completion", body, **key)
        await disturbed.reach(10)
        await asyncio.to_thread(pair.kill, 0)
        await disturbed.task
        assert disturbed.n_posts >= 2
        assert by_choice(disturbed.events) == by_choice(undisturbed.events)
        await asyncio.to_thread(pair.replace, 0)
        with pair.http(0) as again:
            found = again.get("/v1/stream", params={"conv_id": disturbed.id})
            text = [line for line in found.text.splitlines() if not line.startswith("id: ")]
            assert "\n".join(text).strip() == disturbed.data.decode().strip()

            def ended() -> bool:
                answer = again.get(f"/v1/responses/{response}")
                return answer.status_code == 200 and answer.json()["status"] not in ("queued", "in_progress")

            wait_until(ended)
            assert again.get(f"/v1/responses/{response}").json()["usage"]["output_tokens"] == 600
        done = await asyncio.to_thread(finish, batches, batch.id)
        assert (done.status, finish(batches, other.id).status) == ("completed", "completed")
        ids = [row["custom_id"] for row in read(batches, done.output_file_id)]
        assert sorted(ids) == sorted(f"line-{i}" for i in range(60))
        assert second.get("/health").status_code == 200
