"""One request of a real server in detail."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator

import httpx
import pytest

from corral.server.record_middleware import RecordMiddleware
from corral.telemetry.record import RequestRecord
from tests.system.edge import GENEROUS_S, serving
from tests.system.process import START_S, CorralProcess, Stream

ENDLESS = {"prompt": "Once upon a time there was a small model", "n_predict": -1, "ignore_eos": True}
LETTER = " ".join(f"The witness number {i} said that it rained in the harbour." for i in range(30))


@pytest.fixture(scope="module")
def server(tiny) -> Iterator[CorralProcess]:
    options = ("-c", 4096, "-np", 2, "-t", 1, "--context-shift", "--slots", "--cache-ram", 0)
    with CorralProcess("-m", tiny, *options) as server:
        yield server


def ask(server: CorralProcess, id: str, **body: object) -> dict:
    """The details of a request that is made now."""
    body = {"n_predict": 4, "ignore_eos": True, **body}
    response = httpx.post(
        server.url + "/completion", json=body, headers={"x-request-id": id}, timeout=START_S
    )
    assert response.status_code == 200, response.text
    return find(server, id)


def find(server: CorralProcess, id: str) -> dict:
    n = 1
    while (response := server.get(f"/monitor/requests/{n}")).status_code == 200:
        if response.json()["id"] == id:
            return response.json()
        n += 1
    raise AssertionError(f"{id} is not there")


def codes(reasons: list[dict]) -> dict[str, str]:
    return {each["code"]: each["text"] for each in reasons}


def test_why_prompts_were_evaluated(server):
    new = codes(ask(server, "new", prompt=LETTER, id_slot=0)["why_not_cached"])
    again = ask(server, "again", prompt=LETTER, id_slot=0)
    changed = ask(server, "changed", prompt=LETTER.replace("number 20", "number X"), id_slot=0)
    off = codes(ask(server, "off", prompt=LETTER, cache_prompt=False)["why_not_cached"])
    assert {"uncached", "nothing_cached", "new_engine"} <= new.keys()
    assert "complete" in codes(again["why_not_cached"])
    assert again["n_cached"] > 0.9 * again["n_prompt"]
    reasons = codes(changed["why_not_cached"])
    assert {"cached", "differs"} <= reasons.keys()
    assert f"{changed['report']['n_common'] + 1:,}" in reasons["differs"]
    assert 0 < changed["n_cached"] <= changed["report"]["n_common"] < changed["n_prompt"]
    assert off.keys() == {"uncached", "cache_off"}
    kinds = [phase["kind"] for phase in changed["tasks"][0]["phases"]]
    assert kinds == ["queue", "prefix", "prompt", "decode"]


def test_a_prompt_whose_slot_was_used_for_another_is_no_longer_cached(server):
    ask(server, "kept", prompt="Kept. " + LETTER, id_slot=1)
    for id_slot in (0, 1):
        ask(server, f"other-{id_slot}", prompt=f"{id_slot} is another one. " * 30, id_slot=id_slot)
    gone = ask(server, "gone", prompt="Kept. " + LETTER, id_slot=1)
    assert "evicted" in codes(gone["why_not_cached"])


async def test_a_request_that_waits_for_slots_and_shares_the_engine(server):
    streams = [Stream(server.url, **ENDLESS) for _ in range(2)]
    for stream in streams:
        await stream.reach(2)
    waiting = asyncio.create_task(asyncio.to_thread(ask, server, "waiting", prompt="And I", n_predict=30))
    while (await asyncio.to_thread(queue_of, server)) == 0:
        assert not waiting.done()
    streams[0].task.cancel()
    found = await waiting
    streams[1].task.cancel()
    await asyncio.gather(*(stream.task for stream in streams), return_exceptions=True)
    reasons = codes(found["why_slow"])
    assert "2 slots" in reasons["slots_busy"]
    assert "decode" in reasons
    assert "shared" in reasons


def queue_of(server: CorralProcess) -> int:
    event = json.loads(server.get("/monitor/events?limit=1").text.removeprefix("data: "))
    return event["queue"]["n"]


async def test_an_engine_that_is_lost_is_told(server):
    engine = server.engine
    stream = Stream(server.url, **{**ENDLESS, "n_predict": 1500})
    await stream.reach(20)
    engine.kill()
    await stream.task
    assert len(stream.tokens) == 1500
    n = 1
    while (response := await asyncio.to_thread(server.get, f"/monitor/requests/{n}")).status_code == 200:
        found = response.json()
        n += 1
    assert "lost" in [phase["kind"] for phase in found["tasks"][0]["phases"]]
    assert "engine_lost" in codes(found["why_slow"])
    assert "engine_lost" in codes(found["why_not_cached"])


async def test_a_client_that_does_not_read_is_noted():
    records: list[RequestRecord] = []
    is_ended = asyncio.Event()

    class Observer:
        def on_request_end(self, asked, record: RequestRecord) -> None:
            records.append(record)
            is_ended.set()

    async def app(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(64):
            await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async with serving(RecordMiddleware(app, [Observer()]), timeout_s=GENEROUS_S) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        await asyncio.sleep(0.2)
        assert not is_ended.is_set(), "it is more than sockets take"
        while await reader.read(1 << 16):
            pass
        await asyncio.wait_for(is_ended.wait(), GENEROUS_S)
        with contextlib.suppress(ConnectionError):
            writer.close()
            await writer.wait_closed()
    assert 0.1 < records[0].blocked_s <= records[0].ended_at - records[0].started_at
