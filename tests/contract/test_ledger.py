"""The ledger and the limits of keys: what is counted, refused, and kept."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from corral.core.errors import InsufficientStorage
from corral.telemetry import ledger as ledger_module
from tests.contract.inline import Server
from tests.tools.wait import wait_until_async

KEYS = """
amy,tpd=100:key-amy
ben=2,tpm=60,concurrent=1:key-ben
chief,admin:key-chief
dan:key-dan
"""


@pytest.fixture
def keys(tmp_path: Path) -> str:
    (tmp_path / "keys").write_text(KEYS)
    return str(tmp_path / "keys")


async def ask(server: Server, key: str, path: str = "/completion", **body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer key-{key}"}
    return await server.http.post(path, json={"prompt": "a b c", "n_predict": 8, **body}, headers=headers)


async def usage(server: Server, key: str, **query: Any) -> dict:
    response = await server.http.get("/v1/usage", params=query, headers={"x-api-key": f"key-{key}"})
    assert response.status_code == 200, response.text
    return response.json()


async def test_what_a_key_used_is_counted(keys):
    server = Server(api_key_file=keys)
    answer = (await ask(server, "dan", prompt="a b c d " * 20)).json()
    await ask(server, "dan", prompt="a b c d " * 20)
    (entry,) = (await usage(server, "dan"))["data"]
    assert (entry["key"], entry["requests"], entry["refused"]) == ("dan", 2, 0)
    assert entry["output_tokens"] == 2 * answer["tokens_predicted"]
    assert entry["input_tokens"] == 2 * answer["tokens_evaluated"]
    assert 0 < entry["cached_tokens"] < entry["input_tokens"]
    assert entry["seconds"] > 0
    assert (await usage(server, "amy"))["data"] == []
    assert [each["key"] for each in (await usage(server, "chief"))["data"]] == ["dan"]


async def test_a_prompt_counts_although_its_client_leaves_before_the_answer(keys):
    server = Server(api_key_file=keys)
    server.engine.is_paused = True
    asking = asyncio.create_task(ask(server, "dan", prompt="a b c d " * 20))
    await wait_until_async(lambda: server.engine.n_tasks)
    for _ in range(2):
        server.engine.step()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await wait_until_async(lambda: not server.engine.n_tasks)
    (entry,) = (await usage(server, "dan"))["data"]
    assert 0 < entry["input_tokens"] <= 160
    assert entry["output_tokens"] == 0


async def test_tokens_of_a_day_are_limited_across_restarts(keys, tmp_path):
    options = {"api_key_file": keys, "ledger": str(tmp_path / "ledger")}
    server = Server(**options)
    assert (await usage(server, "amy"))["limits"] == {"tokens_per_day": 100}
    response = await ask(server, "amy", n_predict=40)
    assert response.headers["x-ratelimit-limit-tokens"] == "100"
    while (response := await ask(server, "amy", n_predict=40)).status_code == 200:
        pass
    assert response.status_code == 429
    assert response.json()["error"]["type"] == "rate_limit_error"
    assert response.headers["x-ratelimit-remaining-tokens"] == "0"
    assert 0 < int(response.headers["retry-after"]) <= 86400
    before = (await usage(server, "amy"))["data"]
    assert before[0]["refused"] == 1
    await server.services.telemetry.ledger.close()
    server = Server(**options)
    assert (await usage(server, "amy"))["data"] == before
    response = await ask(server, "amy", "/v1/messages", max_tokens=4)
    assert (response.status_code, response.json()["error"]["type"]) == (429, "rate_limit_error")
    assert (await ask(server, "dan")).status_code == 200


async def test_tokens_of_a_minute_come_back(keys, monkeypatch):
    server = Server(api_key_file=keys)
    while (response := await ask(server, "ben", n_predict=30)).status_code == 200:
        pass
    assert 0 < int(response.headers["retry-after"]) <= 60
    monkeypatch.setattr(ledger_module, "_MINUTE_S", 0.0)
    assert (await ask(server, "ben")).status_code == 200


async def test_requests_at_a_time_are_limited(keys):
    server = Server(api_key_file=keys)
    server.engine.is_paused = True
    first = asyncio.create_task(ask(server, "ben"))
    await wait_until_async(lambda: server.engine.n_tasks)
    second = await ask(server, "ben")
    assert (second.status_code, second.headers["x-ratelimit-remaining-requests"]) == (429, "0")
    server.engine.is_paused = False
    assert (await first).status_code == 200
    assert (await ask(server, "ben")).status_code == 200


async def test_a_full_disk_costs_a_warning(keys, tmp_path, monkeypatch, caplog):
    server = Server(api_key_file=keys, ledger=str(tmp_path / "ledger"))
    ledger = server.services.telemetry.ledger
    monkeypatch.setattr(ledger_module, "_FLUSH_S", 0.0)

    def fail(_rows: object) -> None:
        raise InsufficientStorage("full")

    monkeypatch.setattr(ledger, "_write", fail)
    assert (await ask(server, "dan")).status_code == 200
    await wait_until_async(lambda: "in memory only" in caplog.text)
    monkeypatch.undo()
    assert (await ask(server, "dan")).status_code == 200
    await ledger.close()
    again = Server(api_key_file=keys, ledger=str(tmp_path / "ledger"))
    assert (await usage(again, "dan"))["data"][0]["requests"] == 2


@pytest.mark.parametrize("days", ["0", "x", "99999"])
async def test_days_are_checked(days):
    response = await Server().http.get("/v1/usage", params={"days": days})
    assert response.status_code == 400


async def test_metrics_show_the_day(keys):
    server = Server(api_key_file=keys, metrics=True)
    await ask(server, "dan")
    text = (await server.http.get("/metrics", headers={"x-api-key": "key-dan"})).text
    assert 'corral_used_tokens_today{key="dan",kind="output"}' in text
