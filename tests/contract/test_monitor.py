"""`GET /monitor/events`: what slots, queue, caches and engine do, for those who may know."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from corral.core.client import Client
from corral.core.errors import Unavailable
from corral.core.result import Admitted, Tier
from corral.core.task import SlotAction, Verb
from corral.link.engine_state import EngineState
from corral.telemetry import history, timeline
from corral.telemetry.live import MAX_WATCHERS, Monitor
from tests.contract.adapters import adapted_server
from tests.contract.inline import SECONDS, Server

PATH = "/monitor/events"
SECRET = "quokkas guard lighthouses"
LONG = {"n_predict": 50, "ignore_eos": True}


class Watch:
    """Somebody who puts events together, as a page does."""

    def __init__(self, monitor: Monitor, reader: Client | None = None) -> None:
        self._monitor = monitor
        self._events: AsyncGenerator = monitor.watch(reader)
        self.events: list[dict] = []
        self.facts: dict = {}
        self.segments: dict[int, dict] = {}
        self.requests: dict[int, dict] = {}
        self.samples: dict[int, dict] = {}

    async def next(self) -> dict:
        event = await asyncio.wait_for(anext(self._events), SECONDS)
        self.events.append(event)
        self.facts |= event
        for name, known in (("segments", self.segments), ("requests", self.requests)):
            known |= {each["n"]: each for each in event[name]}
        self.samples |= {each["t"]: each for each in event["samples"]}
        return event

    async def look(self) -> dict:
        """The next event, without waiting for the clock."""
        task = asyncio.create_task(self.next())
        await asyncio.sleep(0)
        self._monitor.take_sample(time.perf_counter())
        return await task

    async def close(self) -> None:
        await self._events.aclose()

    @property
    def lanes(self) -> list[tuple[int, str, int]]:
        """What slots did, one after the other: slot, phase, tokens."""
        return [(each["slot"], each["phase"], each["n_done"]) for each in self.segments.values()]


@pytest.fixture(autouse=True)
def no_clock(monkeypatch):
    """Looks come when a test says so."""
    monkeypatch.setattr("corral.telemetry.live.SAMPLE_S", 3600.0)


def watched(**options) -> Server:
    server = Server(is_watched=True, **options)
    server.services.monitor.start()
    return server


def watch(server: Server, reader: Client | None = None) -> Watch:
    return Watch(server.services.monitor, reader)


async def begin(server: Server, *bodies: dict, path: str = "/completion", **headers: str) -> list:
    """Requests that the engine knows of, and has not begun."""
    server.engine.is_paused = True
    known = server.engine.n_tasks
    posts = [asyncio.create_task(server.http.post(path, json=body, headers=headers)) for body in bodies]
    while server.engine.n_tasks < known + len(bodies):
        assert not any(post.done() for post in posts)
        await asyncio.sleep(0)
    return posts


async def finish(server: Server, posts: list) -> None:
    server.engine.is_paused = False
    for response in await asyncio.wait_for(asyncio.gather(*posts), SECONDS):
        assert response.status_code == 200, response.text


async def test_the_first_event_has_everything_and_the_next_what_has_changed():
    server = watched()
    seen = watch(server)
    state = await seen.next()
    assert state["type"] == "state"
    assert state["engine"] | {"since": 0} == {
        "state": "loading",  # as it was before the first look
        "since": 0,
        "n_restarts": 0,
        "restarts": [],
        "model": "fake.gguf",
        "n_slots": 4,
        "n_ctx": server.engine.info.n_ctx,
    }
    assert [slot["id"] for slot in state["slots"]] == [0, 1, 2, 3]
    assert (state["samples"], state["segments"], state["requests"]) == ([], [], [])
    change = await seen.look()
    assert change["type"] == "change"
    assert change["engine"]["state"] == "ready"
    assert (await seen.look()).keys() == {"type", "now", "samples", "segments", "requests"}
    await server.complete(prompt="hello there", n_predict=5, ignore_eos=True)
    change = await seen.look()
    assert {"slots", "kv", "latency", "cache"} <= change.keys()
    assert not {"engine", "queue", "sessions", "adapters"} & change.keys()
    (sample,) = change["samples"]
    assert (sample["n_prompt"], sample["n_generated"]) == (change["cache"]["none"], 5)
    await seen.close()


async def test_the_last_minute_is_there_for_those_who_come_later():
    server = watched()
    await server.complete(prompt="hello there", n_predict=5, ignore_eos=True)
    server.services.monitor.take_sample(time.perf_counter())
    seen = watch(server)
    await seen.next()
    (sample,) = seen.samples.values()
    assert sample["n_generated"] == 5
    assert sample["ttft_ms"]["p50"] > 0 < sample["itl_ms"]["p95"]
    assert [phase for _, phase, _ in seen.lanes] == ["prefill", "decode"]
    (request,) = seen.requests.values()
    assert (request["path"], request["status"], request["n_generated"]) == ("/completion", 200, 5)
    await seen.close()


async def test_history_is_bounded(monkeypatch):
    monkeypatch.setattr(timeline, "MAX_ENDED", 50)
    server = watched()
    for _ in range(history.MAX_REQUESTS + 5):
        await server.complete(prompt="hi", n_predict=2, ignore_eos=True)
    now = time.perf_counter()
    for i in range(500):
        server.services.monitor.take_sample(now + i * 0.1)
    seen = watch(server)
    await seen.next()
    assert len(seen.samples) == 120
    assert len(seen.requests) == history.MAX_REQUESTS
    assert max(seen.requests) == history.MAX_REQUESTS + 5
    assert 0 < len(seen.segments) <= timeline.MAX_ENDED
    await seen.close()
    server.services.monitor.take_sample(now + 1000)
    seen = watch(server)
    assert (await seen.next())["segments"] == []
    await seen.close()


async def test_lanes_show_prefill_and_decode_as_they_go_on():
    server = watched()
    seen = watch(server)
    await seen.next()
    prompt = "a prompt that takes the engine some steps " * 4
    posts = await begin(server, {"prompt": prompt, "id_slot": 2, **LONG}, **{"x-request-id": "mine"})
    await seen.look()
    (waiting,) = seen.facts["queue"]["first"]
    assert (seen.facts["queue"]["n"], waiting["id"]) == (1, "mine")
    server.engine.step()
    await seen.look()
    ((slot, phase, n_done),) = seen.lanes
    assert (slot, phase, 0 < n_done < waiting["n_prompt"]) == (2, "prefill", True)
    assert seen.facts["slots"][2]["is_processing"] is True
    assert seen.facts["queue"] == {"n": 0, "n_running": 1, "first": []}
    while len(seen.segments) < 2:
        server.engine.step()
        await seen.look()
    prefill, decode = seen.segments.values()
    assert (prefill["phase"], prefill["n_done"]) == ("prefill", waiting["n_prompt"])
    assert prefill["from"] <= prefill["to"] == decode["from"]
    assert (decode["phase"], decode["to"], decode["id"], decode["key"]) == ("decode", None, "mine", "")
    assert decode["n_done"] >= 1
    await finish(server, posts)
    await seen.look()
    assert seen.lanes == [(2, "prefill", waiting["n_prompt"]), (2, "decode", 50)]
    assert all(each["to"] and not each["lost"] for each in seen.segments.values())
    (request,) = seen.requests.values()
    assert (request["id"], request["slot"], request["n_generated"]) == ("mine", 2, 50)
    assert 0 < request["queue_ms"] <= request["ttft_ms"] <= request["ms"]
    assert 0 < request["itl_ms"] <= request["itl_max_ms"]
    await seen.close()


async def test_the_queue_is_those_who_have_no_slot():
    server = watched()
    seen = watch(server)
    await seen.next()
    posts = await begin(server, *[{"prompt": f"{i} hello", **LONG} for i in range(6)])
    server.engine.step()
    server.engine.step()
    await seen.look()
    (sample,) = seen.events[-1]["samples"]
    assert (sample["n_waiting"], sample["n_running"], sample["n_busy"]) == (2, 4, 4)
    assert (seen.facts["queue"]["n"], len(seen.facts["queue"]["first"])) == (2, 2)
    assert seen.facts["kv"]["n_tokens"] == sample["kv_tokens"] > 0
    await finish(server, posts)
    await seen.look()
    assert seen.facts["queue"] == {"n": 0, "n_running": 0, "first": []}
    await seen.close()


async def test_where_prefixes_came_from():
    server = watched()
    seen = watch(server)
    await seen.next()
    prompt = "a story about three foxes and a river, told slowly. " * 4
    await server.complete(prompt=prompt, n_predict=2, id_slot=0)
    again = await server.complete(prompt=prompt, n_predict=2, id_slot=0, cache_report=True)
    shared = await server.complete(prompt=prompt + "And", n_predict=2, id_slot=3)
    await seen.look()
    first, own, slot = seen.requests.values()
    assert [each["source"] for each in (first, own, slot)] == ["none", "own", "slot"]
    assert (own["n_cached"], own["from_slot"]) == (again["timings"]["cache_n"], 0)
    assert (slot["n_cached"], slot["from_slot"]) == (shared["timings"]["cache_n"], 0)
    for each in (first, own, slot):
        assert each["report"].keys() == {"n_common", "n_moved"}, "no tokens, which are words of the prompt"
    held = seen.facts["slots"]
    assert [(each["source"], each["from_slot"]) for each in held] == [
        ("own", 0),
        ("none", None),
        ("none", None),
        ("slot", 0),
    ]
    assert held[3]["n_cached"] == slot["n_cached"] < held[3]["n_held"]
    cache = seen.facts["cache"]
    assert cache == {
        "none": sum(each["prompt_n"] for each in (first, own, slot)),
        "own": own["n_cached"],
        "slot": slot["n_cached"],
        "ram": 0,
        "disk": 0,
    }
    # What comes into a slot another way was not cached for its last request.
    report = await server.engine.act(SlotAction(verb=Verb.ERASE, slot=3))
    server.engine.telemetry.on_action(SlotAction(verb=Verb.ERASE, slot=3), report)
    await seen.look()
    assert seen.facts["slots"][3] == {
        "id": 3,
        "is_processing": False,
        "n_held": 0,
        "n_cached": 0,
        "source": "none",
        "from_slot": None,
    }
    await seen.close()


async def test_prompts_that_are_evaluated_together_are_shared():
    server = watched()
    seen = watch(server)
    await seen.next()
    body = {"prompt": "the very same prompt, twice at once, and long enough to matter", **LONG}
    posts = await begin(server, body, body)
    await finish(server, posts)
    await seen.look()
    first, twin = seen.requests.values()
    assert {first["source"], twin["source"]} == {"none", "slot"}
    one, other = (first, twin) if twin["source"] == "slot" else (twin, first)
    assert (other["from_slot"], other["n_cached"]) == (one["slot"], other["n_prompt"])
    assert other["prompt_n"] == 0
    await seen.close()


@pytest.mark.parametrize(
    ("admitted", "source"),
    [
        (Admitted(0, 1, 0), "none"),
        (Admitted(0, 1, 5, None, Tier.LIVE, 1), "own"),
        (Admitted(0, 1, 5, None, Tier.LIVE, 0), "slot"),
        (Admitted(0, 1, 5, None, Tier.LIVE, -1), "slot"),  # of a guided request, whom nobody knows
        (Admitted(0, 1, 5, None, Tier.RAM), "ram"),
        (Admitted(0, 1, 5, None, Tier.DISK), "disk"),
    ],
)
def test_every_source_has_a_name(admitted, source):
    assert timeline.source_of(admitted) == source
    assert source in timeline.SOURCES


async def test_requests_that_were_refused_are_told_and_others_not():
    server = watched(api_keys=("k",))
    seen = watch(server)
    await seen.next()
    key = {"x-api-key": "k"}
    await server.http.post("/completion", json={"prompt": 1.5}, headers=key)
    await server.http.post("/completion", json={"prompt": "no key"})
    await server.http.post("/tokenize", json={"content": "hello"}, headers=key)
    await server.http.post("/no/such/path", headers=key)
    await server.http.get("/health")
    await server.http.post("/v1/embeddings", json={"input": ["a", "b"]}, headers=key)
    await seen.look()
    refused, embedding = seen.requests.values()
    assert (refused["path"], refused["status"], refused["n_orders"]) == ("/completion", 400, 0)
    assert (embedding["path"], embedding["status"], embedding["key"]) == ("/v1/embeddings", 200, "key1")
    assert (embedding["ttft_ms"], embedding["n_generated"], embedding["source"]) == (None, 0, "none")
    await seen.close()


async def test_a_request_with_several_orders_is_one():
    server = watched()
    seen = watch(server)
    await seen.next()
    body = {"prompt": ["a", "bc"], "max_tokens": 3, "n": 2, "ignore_eos": True}
    await server.http.post("/v1/completions", json=body)
    await seen.look()
    (request,) = seen.requests.values()
    assert (request["n_orders"], request["n_generated"]) == (4, 12)
    assert len(seen.segments) == 8
    await seen.close()


async def test_a_client_that_leaves_ends_its_lane():
    server = watched()
    seen = watch(server)
    await seen.next()
    (post,) = await begin(server, {"prompt": "hello", **LONG})
    server.engine.step()
    await seen.look()
    post.cancel()
    await asyncio.wait({post})
    await seen.look()
    assert seen.segments
    assert all(each["to"] for each in seen.segments.values())
    (request,) = seen.requests.values()
    assert request["status"] == 503
    await seen.close()


async def test_a_lost_engine_ends_what_its_slots_did_and_is_counted():
    server = watched()
    seen = watch(server)
    await seen.next()
    await seen.look()
    posts = await begin(server, {"prompt": "hello", **LONG})
    while not any(phase == "decode" for _, phase, _ in seen.lanes):
        server.engine.step()
        await seen.look()
    server.engine.state, server.engine.n_restarts = EngineState.RESTARTING, 1
    await seen.look()
    assert (seen.facts["engine"]["state"], seen.facts["engine"]["n_restarts"]) == ("restarting", 1)
    assert len(seen.facts["engine"]["restarts"]) == 1
    *_, decode = seen.segments.values()
    assert (decode["phase"], decode["lost"], decode["to"] is None) == ("decode", True, False)
    server.engine.state = EngineState.READY
    before = seen.facts["engine"]["since"]
    await seen.look()
    assert (seen.facts["engine"]["state"], seen.facts["engine"]["n_restarts"]) == ("ready", 1)
    assert seen.facts["engine"]["since"] >= before
    await finish(server, posts)
    await seen.close()


async def test_nothing_is_told_that_somebody_wrote():
    server = watched(slots=True)
    seen = watch(server)
    await seen.next()
    posts = await begin(server, {"prompt": SECRET, **LONG}, {"prompt": SECRET, "cache_report": True, **LONG})
    for _ in range(5):
        await seen.look()
        server.engine.step()
    await finish(server, posts)
    await seen.look()
    state = watch(server)
    await state.next()
    told = json.dumps([*seen.events, *state.events])
    assert len(seen.requests) == 2
    assert not any(word in told for word in SECRET.split())
    assert "prompts" not in told
    await seen.close()
    await state.close()


async def test_prompts_need_a_server_with_keys():
    server = watched()
    response = await server.http.get(PATH, params={"prompts": "true", "limit": 1})
    assert response.status_code == 403
    assert "--api-key" in response.json()["error"]["message"]
    assert (await server.http.get(PATH, params={"prompts": "false", "limit": 1})).status_code == 200
    assert (await server.http.get(PATH, params={"prompts": "maybe"})).status_code == 400


async def test_prompts_are_told_to_those_whose_they_are(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alice:sk-a\nbob:sk-b\n")
    server = watched(api_key_file=str(keys))
    alice, bob = ({"authorization": f"Bearer {key}"} for key in ("sk-a", "sk-b"))
    body: dict[str, Any] = {"prompt": SECRET + " and much more" * 14, "n_predict": 2}
    assert (await server.http.post("/completion", json=body, headers=alice)).status_code == 200

    async def told(headers: dict, **params: Any) -> dict:
        response = await server.http.get(PATH, headers=headers, params={"limit": 1, **params})
        assert response.status_code == 200, response.text
        return json.loads(response.text.removeprefix("data: "))

    assert "lighthouse" not in json.dumps(await told(alice))
    (prompt,) = (await told(alice, prompts="true"))["prompts"]
    assert (prompt["slot"], prompt["prompt"]) == (0, body["prompt"][: len(prompt["prompt"])])
    assert len(SECRET) < len(prompt["prompt"]) <= 200
    state = await told(bob, prompts="true")
    assert state["prompts"] == []
    assert "lighthouse" not in json.dumps(state)
    assert state["requests"][0]["key"] == "alice"
    assert (await server.http.get(PATH, params={"prompts": "true"})).status_code == 401


async def test_prompts_come_again_only_when_they_have_changed():
    server = watched()
    seen = watch(server, Client())
    await seen.next()
    await server.complete(prompt="one", n_predict=2)
    assert [each["prompt"] for each in (await seen.look())["prompts"]] == ["one"]
    assert "prompts" not in await seen.look()
    await server.complete(prompt="two", n_predict=2, id_slot=0)
    assert [each["prompt"] for each in (await seen.look())["prompts"]] == ["two"]
    await seen.close()


async def test_only_so_many_may_watch():
    server = watched()
    observers = [watch(server) for _ in range(MAX_WATCHERS)]
    for each in observers:
        await each.next()
    response = await server.http.get(PATH)
    assert response.status_code == 503
    assert str(MAX_WATCHERS) in response.json()["error"]["message"]
    with pytest.raises(Unavailable):
        await watch(server).next()
    await observers.pop().close()
    assert (await server.http.get(PATH, params={"limit": 1})).status_code == 200
    for each in observers:
        await each.close()


async def test_a_client_that_leaves_makes_room():
    server = watched()
    for _ in range(MAX_WATCHERS + 1):
        task = asyncio.create_task(server.http.get(PATH))
        while not server.services.monitor._n_watchers:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert server.services.monitor._n_watchers == 0


async def test_all_watchers_see_the_same_whenever_they_came():
    server = watched()
    early = watch(server)
    await early.next()
    posts = await begin(server, {"prompt": "hello there", **LONG})
    server.engine.step()
    late = watch(server)
    await late.next()
    for _ in range(3):
        server.engine.step()
        tasks = [asyncio.create_task(each.next()) for each in (early, late)]
        await asyncio.sleep(0)
        server.services.monitor.take_sample(time.perf_counter())
        await asyncio.gather(*tasks)
    await finish(server, posts)
    for name in ("facts", "segments"):
        assert getattr(early, name) == getattr(late, name)
    await early.close()
    await late.close()


async def test_whoever_is_too_slow_gets_everything_again():
    server = watched()
    seen = watch(server)
    await seen.next()
    for i in range(3):
        server.services.monitor.take_sample(time.perf_counter() + i)
    assert (await seen.next())["type"] == "state"
    assert len(seen.samples) == 3
    assert (await seen.look())["type"] == "change"
    await seen.close()


async def test_a_server_that_stops_sends_everybody_away():
    server = watched()
    request = asyncio.create_task(server.http.get(PATH))
    while not server.services.monitor._n_watchers:
        await asyncio.sleep(0)
    server.services.monitor.close()
    response = await asyncio.wait_for(request, SECONDS)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    assert len(response.text.strip().splitlines()) == 1
    assert (await server.http.get(PATH)).status_code == 503


@pytest.mark.parametrize("limit", ["0", "-1", "x", "1e3", "99999999999", "²"])
async def test_a_limit_is_a_number(limit):
    response = await watched().http.get(PATH, params={"limit": limit})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "limit"


async def test_it_needs_the_key_and_works_while_the_model_loads():
    assert (await watched(api_keys=("k",)).http.get(PATH)).status_code == 401
    server = watched(is_open=False)
    server.engine.state, server.engine.info = EngineState.LOADING, None
    response = await server.http.get(PATH, params={"limit": 1})
    state = json.loads(response.text.removeprefix("data: "))
    assert (state["engine"]["state"], state["engine"]["n_ctx"]) == ("loading", 0)


async def test_it_is_there_also_without_the_page():
    assert (await watched(ui=False).http.get(PATH, params={"limit": 1})).status_code == 200


async def test_adapters_are_told_with_their_scales():
    server = adapted_server(1.0, 0.5, is_watched=True)
    seen = watch(server)
    adapters = (await seen.next())["adapters"]
    assert [(each["id"], each["scale"]) for each in adapters] == [(0, 1.0), (1, 0.5)]
    assert all("/" not in each["name"] for each in adapters)
    await server.http.post("/lora-adapters", json=[{"id": 1, "scale": 0.25}])
    assert [each["scale"] for each in (await seen.look())["adapters"]] == [0.0, 0.25]
    await seen.close()


async def test_sessions_are_told_and_that_there_are_no_adapters():
    server = watched(slots=True)
    await server.complete(prompt="hello", n_predict=2)
    saved = await server.http.post("/sessions/alice?action=save&slot=0")
    assert saved.status_code == 200
    seen = watch(server)
    state = await seen.next()
    assert state["sessions"] == {"n": 1, "n_bytes": saved.json()["n_bytes"]}
    assert state["adapters"] == []
    await seen.close()


async def test_every_field_is_in_the_documentation():
    text = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
    section = text.partition("## Events")[2].partition("\n## ")[0]
    tables = dict.fromkeys(("field", "of a sample", "of a segment", "of a request"))
    for name in tables:
        rows = section.partition(f"| {name} | |\n")[2].partition("\n\n")[0]
        tables[name] = set(re.findall(r"`(\w+)`", rows))
    server = watched()
    seen = watch(server, Client())
    await server.complete(prompt="hello there", n_predict=3, ignore_eos=True, cache_report=True)
    server.services.monitor.take_sample(time.perf_counter())
    state = await seen.next()
    assert set(state) <= tables["field"]
    for name, table in zip(("samples", "segments", "requests"), list(tables)[1:], strict=True):
        assert set(state[name][0]) - {"n"} <= tables[table], name
    for name in ("engine", "queue", "kv", "sessions", "latency", "cache"):
        assert set(state[name]) <= tables["field"], name
    assert set(state["slots"][0]) <= tables["field"]
    await seen.close()
