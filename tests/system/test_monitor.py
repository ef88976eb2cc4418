"""`GET /monitor/events` of a real server: what watchers see, and that nobody waits for them."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from tests.system.process import START_S, CorralProcess, Stream, wait_until

ENDLESS = {"prompt": "Once upon a time there was a small model", "n_predict": -1, "ignore_eos": True}
PATH = "/monitor/events"


class Watch:
    """Somebody who watches; `events` is all that has come."""

    def __init__(self, url: str) -> None:
        self.events: list[dict] = []
        self._url = url
        self._came = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with (
            httpx.AsyncClient(timeout=START_S) as http,
            http.stream("GET", self._url + PATH) as response,
        ):
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    self.events.append(json.loads(line.removeprefix("data: ")))
                    self._came.set()

    async def until(self, condition: Callable[[dict], bool]) -> dict:
        """The first event that is like this, of those to come if there was none."""
        while True:
            found = next((event for event in self.events if condition(event)), None)
            if found is not None:
                return found
            self._came.clear()
            waiter = asyncio.create_task(self._came.wait())
            await asyncio.wait({waiter, self.task}, return_when=asyncio.FIRST_COMPLETED, timeout=START_S)
            waiter.cancel()
            assert self._came.is_set(), "nothing comes any more"

    async def until_engine(self, state: str) -> dict:
        return await self.until(lambda event: event.get("engine", {}).get("state") == state)

    def states(self) -> list[str]:
        """Of the engine, one after the other."""
        return [event["engine"]["state"] for event in self.events if "engine" in event]


@pytest.fixture
async def watch() -> AsyncIterator[Callable[[CorralProcess], Watch]]:
    watches: list[Watch] = []

    def start(server: CorralProcess) -> Watch:
        watches.append(Watch(server.url))
        return watches[-1]

    yield start
    for each in watches:
        each.task.cancel()
    await asyncio.gather(*(each.task for each in watches), return_exceptions=True)


@pytest.fixture
def server(tiny):
    with CorralProcess("-m", tiny, "-c", 2048, "-np", 2, "--context-shift", "--timeout", 300) as server:
        yield server


async def test_a_stopping_server_waits_for_requests_and_not_for_watchers(server, watch):
    watches = [watch(server) for _ in range(3)]
    for each in watches:
        await each.until(lambda event: event["type"] == "change")
    stream = Stream(server.url, **{**ENDLESS, "n_predict": 400})
    await stream.reach(2)
    server.process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(asyncio.gather(*(each.task for each in watches)), START_S)
    assert server.process.poll() is None or len(stream.tokens) == 400
    await stream.task
    assert len(stream.tokens) == 400
    assert await asyncio.to_thread(server.stop) == 0
    printed = "".join(server.lines)
    assert "--timeout expired" not in printed
    assert "Traceback" not in printed


async def test_a_server_with_nothing_but_watchers_stops_at_once(server, watch):
    each = watch(server)
    await each.until(lambda event: event["type"] == "change")
    begun = time.monotonic()
    assert await asyncio.to_thread(server.stop) == 0
    assert time.monotonic() - begun < 60, "the limit for what runs is 300"
    await each.task


async def test_a_lost_engine_is_seen_and_its_work_goes_on(server, watch):
    each = watch(server)
    await each.until_engine("ready")
    stream = Stream(server.url, **ENDLESS)
    await each.until(lambda event: any(piece["phase"] == "decode" for piece in event["segments"]))
    server.engine.kill()
    lost = await each.until(lambda event: any(piece["lost"] for piece in event["segments"]))
    (piece,) = [piece for piece in lost["segments"] if piece["lost"]]
    assert piece["to"] is not None
    restarted = await each.until(lambda event: event.get("engine", {}).get("n_restarts") == 1)
    assert len(restarted["engine"]["restarts"]) == 1
    again = await each.until(
        lambda event: any(
            new["id"] == piece["id"] and new["n"] > piece["n"] and new["phase"] == "decode"
            for new in event["segments"]
        )
    )
    assert again["now"] > lost["now"]
    assert each.states()[-1] == "ready"
    stream.task.cancel()
    ended = await each.until(lambda event: bool(event["requests"]))
    assert (ended["requests"][0]["status"], ended["requests"][0]["n_engines"]) == (499, 2)


async def test_watching_keeps_no_engine_awake_and_wakes_none(tiny, watch):
    with CorralProcess("-m", tiny, "-c", 512, "--sleep-idle-seconds", 1) as server:
        each = watch(server)
        await each.until_engine("sleeping")
        n_events = len(each.events)
        await each.until(lambda _: len(each.events) >= n_events + 4)
        late = watch(server)
        assert (await late.until(lambda _: True))["engine"]["state"] == "sleeping"
        wait_until(lambda: not server.engines)
        assert not late.events[0]["slots"][0]["is_processing"]
        await asyncio.to_thread(server.complete, prompt="Hello", n_predict=4)
        awake = await late.until_engine("ready")
        assert awake["engine"]["n_restarts"] == 0, "that it slept is no loss"


async def test_places_are_free_again_when_clients_leave(server, watch):
    watches = [watch(server) for _ in range(32)]
    for each in watches:
        await each.until(lambda _: True)
    refused = await asyncio.to_thread(server.get, PATH)
    assert (refused.status_code, refused.json()["error"]["type"]) == (503, "unavailable_error")
    for each in watches[:5]:
        each.task.cancel()
    await asyncio.gather(*(each.task for each in watches[:5]), return_exceptions=True)
    deadline = time.monotonic() + START_S
    while (await asyncio.to_thread(server.get, PATH + "?limit=1")).status_code != 200:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
