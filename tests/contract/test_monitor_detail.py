"""`GET /monitor/requests/{n}`: the phases of one request, and why it was slow or not cached."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest

from corral.core.task import SlotAction, Verb
from tests.contract.inline import Server
from tests.contract.test_monitor import LONG, SECRET, begin, finish, watched

PROMPT = "a story about three foxes and a river, told slowly. " * 3


@pytest.fixture(autouse=True)
def no_clock(monkeypatch):
    monkeypatch.setattr("corral.telemetry.live.SAMPLE_S", 3600.0)


async def detail(server: Server, n: int, **headers: str) -> dict:
    response = await server.http.get(f"/monitor/requests/{n}", headers=headers)
    assert response.status_code == 200, response.text
    return response.json()


def codes(reasons: list[dict]) -> set[str]:
    return {each["code"] for each in reasons}


async def test_phases_fill_the_time_of_a_request():
    server = watched()
    await server.complete(prompt=PROMPT, n_predict=5, ignore_eos=True, id_slot=0)
    await server.complete(prompt=PROMPT + "And then", n_predict=5, ignore_eos=True, id_slot=0)
    found = await detail(server, 2)
    (task,) = found["tasks"]
    phases = [*found["phases"][:1], *task["phases"], *found["phases"][1:]]
    assert [each["kind"] for each in phases] == ["prepare", "queue", "prefix", "prompt", "decode", "send"]
    for one, other in itertools.pairwise(phases[:-1]):
        assert one["from_ms"] + one["ms"] == pytest.approx(other["from_ms"], abs=0.05)
    decode, send = phases[-2:]
    assert decode["from_ms"] + decode["ms"] <= send["from_ms"] + 0.05
    assert send["from_ms"] + send["ms"] == pytest.approx(found["ms"], abs=0.05)
    cached, evaluated, generated = (each["n"] for each in phases[2:5])
    assert (cached, cached + evaluated, generated) == (task["n_cached"], task["n_prompt"], 5)
    assert (task["slot"], task["source"], task["drafts"]) == (0, "own", None)
    assert {"total"} <= codes(found["why_slow"])


async def test_why_prompts_were_evaluated():
    server = watched()
    await server.complete(prompt=PROMPT, n_predict=2, id_slot=0)
    await server.complete(prompt=PROMPT + "And then it rained for a very long time.", n_predict=2)
    await server.complete(prompt="no " + PROMPT, n_predict=2, cache_prompt=False)
    await server.complete(prompt="Now " + PROMPT, n_predict=2, id_slot=0)
    first, longer, off, other = [await detail(server, n) for n in (1, 2, 3, 4)]
    assert codes(first["why_not_cached"]) >= {"uncached", "nothing_cached"}
    assert codes(longer["why_not_cached"]) & {"differs", "continues"}
    assert codes(off["why_not_cached"]) == {"uncached", "cache_off"}
    assert "differs" in codes(other["why_not_cached"])


async def test_a_prompt_that_is_no_longer_cached():
    server = watched()
    await server.complete(prompt=PROMPT, n_predict=2, id_slot=0)
    await server.engine.act(SlotAction(verb=Verb.ERASE, slot=0))
    await server.complete(prompt=PROMPT, n_predict=2, id_slot=0)
    again = await detail(server, 2)
    assert again["n_cached"] == 0
    assert codes(again["why_not_cached"]) >= {"uncached", "nothing_cached", "evicted"}


async def test_a_request_that_waited_for_others():
    server = watched()
    posts = await begin(server, *[{"prompt": f"{i} hello", **LONG} for i in range(4)])
    server.engine.step()
    late = await begin(server, {"prompt": "and I", **LONG}, **{"x-request-id": "late"})
    await asyncio.sleep(0.02)
    await finish(server, [*posts, *late])
    found = [await detail(server, n) for n in range(1, 6)]
    (waited,) = [each for each in found if each["id"] == "late"]
    reasons = {each["code"]: each["text"] for each in waited["why_slow"]}
    assert "all 4 slots" in reasons["slots_busy"]


async def test_others_see_nothing_of_it_but_administrators(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alice:sk-a\nbob:sk-b\nroot,admin:sk-r\n")
    server = watched(api_key_file=str(keys))
    alice, bob, root = ({"authorization": f"Bearer sk-{key}"} for key in "abr")
    body = {"prompt": SECRET, "n_predict": 2}
    assert (await server.http.post("/completion", json=body, headers=alice)).status_code == 200
    assert (await server.http.get("/monitor/requests/1")).status_code == 401
    assert (await server.http.get("/monitor/requests/1", headers=bob)).status_code == 404
    for headers in (alice, root):
        found = await detail(server, 1, **headers)
        assert found["key"] == "alice"
        assert not any(word in json.dumps(found) for word in SECRET.split())


@pytest.mark.parametrize("n", ["0", "2", "-1", "x", "1e3", "9" * 400, "²"])
async def test_a_request_that_is_not_there(n):
    server = watched()
    await server.complete(prompt="hello", n_predict=2)
    response = await server.http.get(f"/monitor/requests/{n}")
    assert (response.status_code, response.json()["error"]["type"]) == (404, "not_found_error")


async def test_requests_without_a_slot_have_details_too():
    server = watched()
    await server.http.post("/completion", json={"prompt": 1.5})
    await server.http.post("/v1/embeddings", json={"input": ["a", "b"]})
    refused, embedding = await detail(server, 1), await detail(server, 2)
    assert codes(refused["why_slow"]) == {"no_work"}
    assert refused["tasks"] == []
    assert "embedding" in codes(embedding["why_not_cached"])
