"""GET /metrics under our own names: every order and request is counted once, for whoever sent it."""

from __future__ import annotations

import asyncio
import itertools
import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from corral.core.client import Client
from corral.core.params import GenerationParams
from corral.core.result import Admitted, Done, StopType, Tier, Timings, Tokens
from corral.core.task import Task
from corral.link.engine_state import EngineState
from corral.telemetry.dispatcher import TaskFollower, Telemetry
from corral.telemetry.prometheus import ServerMetrics, engine_metrics
from corral.telemetry.record import RequestRecord
from corral.telemetry.task_metrics import TaskMetrics
from tests.contract.inline import SECONDS, Server

HISTOGRAMS = (
    "corral_time_to_first_token_seconds",
    "corral_time_between_tokens_seconds",
    "corral_queue_seconds",
    "corral_request_seconds",
    "corral_prompt_tokens",
    "corral_generated_tokens",
)


class Sums(dict):
    """Values by name and labels; labels that are not asked for are summed over."""

    def of(self, name: str, **labels: str) -> float:
        return sum(
            value for (other, given), value in self.items() if other == name and labels.items() <= set(given)
        )

    def counts(self, **labels: str) -> list[float]:
        return [self.of(f"{name}_count", **labels) for name in HISTOGRAMS]


async def read(server: Server, **headers: str) -> Sums:
    response = await server.http.get("/metrics", headers=headers)
    assert response.status_code == 200
    sums = Sums()
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            sums[sample.name, tuple(sample.labels.items())] = sample.value
    return sums


async def test_every_histogram_counts_what_it_says():
    server = Server(metrics=True)
    assert (await read(server)).counts(key="", model="fake.gguf") == [0] * 6
    answer = await server.complete(prompt="hello there", n_predict=5, ignore_eos=True)
    sums = await read(server)
    assert sums.counts(key="", model="fake.gguf") == sums.counts() == [1, 4, 1, 1, 1, 1]
    assert sums.of("corral_prompt_tokens_sum") == answer["tokens_evaluated"]
    assert sums.of("corral_generated_tokens_sum") == 5
    first, between, queue, request = (sums.of(f"{name}_sum") for name in HISTOGRAMS[:4])
    assert 0 < queue < first < first + between < request
    # Nothing is beyond the last bucket but one, and buckets only grow.
    for name in HISTOGRAMS:
        buckets = [value for (other, _), value in sums.items() if other == f"{name}_bucket"]
        assert buckets == sorted(buckets)


async def test_every_answer_of_a_request_counts_but_the_request_once():
    server = Server(metrics=True)
    body = {"prompt": ["a", "bc"], "max_tokens": 3, "n": 2, "stream": True, "ignore_eos": True}
    await server.http.post("/v1/completions", json=body)
    assert (await read(server)).counts() == [4, 8, 4, 1, 4, 4]


async def test_an_embedding_has_no_tokens_of_its_own():
    server = Server(metrics=True)
    response = await server.http.post("/embedding", json={"content": ["hello", "you"]})
    assert response.status_code == 200
    sums = await read(server)
    assert sums.counts() == [0, 0, 1, 1, 1, 0]
    assert sums.of("corral_prompt_tokens_sum") >= len("helloyou")


async def test_numbers_belong_to_the_key_that_was_shown(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alice:sk-a\nbob=2:sk-b\n")
    server = Server(metrics=True, api_key_file=str(keys))
    for key in ("sk-a", "sk-b", "sk-b"):
        headers = {"authorization": f"Bearer {key}"}
        body = {"prompt": "hello", "n_predict": 2, "ignore_eos": True}
        assert (await server.http.post("/completion", json=body, headers=headers)).status_code == 200
    response = await server.http.get("/metrics", headers={"authorization": "Bearer sk-a"})
    assert "sk-" not in response.text
    sums = await read(server, authorization="Bearer sk-a")
    assert sums.counts(key="alice") == [1, 1, 1, 1, 1, 1]
    assert sums.counts(key="bob") == [2, 2, 2, 2, 2, 2]
    assert sums.counts(key="") == [0] * 6
    assert not any(dict(labels).get("key") == "" for _, labels in sums)
    assert (await server.http.get("/metrics")).status_code == 401


async def test_whoever_leaves_the_queue_has_waited():
    server = Server(metrics=True)
    server.engine.is_paused = True
    body = {"prompt": "hello", "n_predict": 5}
    request = asyncio.create_task(server.http.post("/completion", json=body))
    while not server.engine.n_tasks:
        await asyncio.sleep(0)
    assert (await read(server)).of("corral_queue_length") == 1
    request.cancel()
    await asyncio.wait({request})
    sums = await read(server)
    assert sums.counts() == [0, 0, 1, 1, 0, 0]
    assert sums.of("corral_queue_length") == 0
    assert sums.of("corral_http_requests_total", route="/completion", status="503") == 1


async def test_hits_are_counted_by_where_they_came_from():
    server = Server(metrics=True)
    prompt = "hello there " * 8
    first = await server.complete(prompt=prompt, n_predict=1)
    second = await server.complete(prompt=prompt, n_predict=1)
    assert first["timings"]["cache_n"] == 0 < second["timings"]["cache_n"]
    sums = await read(server)
    assert sums.of("corral_cache_hits_total", tier="none") == 1
    assert sums.of("corral_cache_hits_total", tier="live") == 1
    assert sums.of("corral_cached_tokens_total", tier="live") == second["timings"]["cache_n"]
    for tier in ("ram", "disk"):
        assert ("corral_cache_hits_total", (("tier", tier),)) in sums
        assert sums.of("corral_cached_tokens_total", tier=tier) == 0


async def test_requests_by_route_and_nothing_that_clients_make_up():
    server = Server(metrics=True, slots=True)
    await server.complete(prompt="hello", n_predict=1)
    assert (await server.http.post("/completion", json={"prompt": 1.5})).status_code == 400
    await server.http.post("/slots/77?action=erase")
    await server.http.post("/slots/78?action=erase")
    for i in range(3):
        await server.http.get(f"/no/such/path/{i}")
        await server.http.request(f"MADEUP{i}", "/health")
    await server.http.get("/health")
    sums = await read(server)

    def count(route: str, method: str, status: int) -> float:
        return sums.of("corral_http_requests_total", route=route, method=method, status=str(status))

    assert count("/completion", "POST", 200) == 1
    assert count("/completion", "POST", 400) == 1
    assert sums.of("corral_http_requests_total", route="/slots/{id_slot}", method="POST") == 2
    assert count("other", "GET", 404) == 3
    assert sums.of("corral_http_requests_total", method="other") == 3
    assert count("/health", "GET", 200) == 1
    assert sums.of("corral_http_requests_total", route="/metrics") == 0  # this one has not ended
    labels = {labels for name, labels in sums if name == "corral_http_requests_total"}
    assert not any("MADEUP" in str(each) or "such" in str(each) for each in labels)


async def test_a_bug_is_a_500_and_a_wrong_key_a_401(monkeypatch):
    server = Server(metrics=True, api_keys=("sk-a",))
    headers = {"authorization": "Bearer sk-a"}
    monkeypatch.setattr("corral.models.only_model.render_only", lambda _: 1 / 0)
    assert (await server.http.get("/v1/models", headers=headers)).status_code == 500
    assert (await server.http.post("/completion", json={"prompt": "x"})).status_code == 401
    sums = await read(server, **headers)
    assert sums.of("corral_http_requests_total", route="/v1/models", status="500") == 1
    assert sums.of("corral_http_requests_total", route="other", status="401") == 1


async def test_states_are_one_or_zero():
    server = Server(metrics=True)
    sums = await read(server)
    assert sums.of("corral_engine_state") == sums.of("corral_engine_state", state="ready") == 1
    server.engine.state = EngineState.RESTARTING
    sums = await read(server)
    assert sums.of("corral_engine_state") == sums.of("corral_engine_state", state="restarting") == 1
    assert sums.of("corral_slots", state="idle") == 4
    assert sums.of("corral_slots", state="busy") == 0
    assert sums.of("corral_build_info", model="fake.gguf") == 1
    assert sums.of("process_resident_memory_bytes") > 1 << 20
    assert sums.of("process_open_fds") > 2


async def test_slots_are_busy_while_they_work():
    server = Server(metrics=True)
    server.engine.is_paused = True
    body = {"prompt": "hello", "n_predict": 50, "ignore_eos": True}
    requests = [asyncio.create_task(server.http.post("/completion", json=body)) for _ in range(6)]
    while server.engine.n_tasks < 6:
        await asyncio.sleep(0)
    server.engine.step()
    server.engine.step()
    sums = await read(server)
    assert sums.of("corral_slots", state="busy") == 4
    assert sums.of("corral_queue_length") == 2
    assert sums.counts()[2] == 4
    server.engine.is_paused = False
    await asyncio.wait_for(asyncio.gather(*requests), SECONDS)
    assert (await read(server)).counts() == [6, 6 * 49, 6, 6, 6, 6]


async def test_every_name_is_in_the_documentation():
    text = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
    documented = set(re.findall(r"^\| `((?:llamacpp:|corral_)\w+)`", text, re.M))
    server = Server(metrics=True)
    server.services.server_metrics.watch_connections(lambda: 0)
    server.services.metrics._tasks.accepted_per_pos[0] = 1  # shown once there are any
    shown = set(re.findall(r"^# TYPE (\S+)", (await server.http.get("/metrics")).text, re.M))
    shown |= {
        f"{each.name}{'_total' * (each.type == 'counter')}" for each in engine_metrics(())
    }  # of several engines
    assert {name for name in shown if not name.startswith("process_")} == documented


async def test_connections_are_shown_by_a_server_that_has_some():
    server = Server(metrics=True)
    assert not any(name == "corral_connections" for name, _ in await read(server))
    metrics: ServerMetrics = server.services.server_metrics
    metrics.watch_connections(lambda: 3)
    assert (await read(server)).of("corral_connections") == 3


async def test_nothing_watches_where_nobody_asks():
    telemetry = Server().engine.telemetry
    assert telemetry.observers == [telemetry.ledger]
    assert len(Server(metrics=True).engine.telemetry.observers) == 2


TASK = Task(id=0, prompt=[1] * 10, params=GenerationParams())


def timings(predicted_n: int, cache_n: int = 0) -> Timings:
    return Timings(cache_n=cache_n, prompt_n=10, prompt_ms=1.0, predicted_n=predicted_n, predicted_ms=1.0)


def tokens(n: int, total: int) -> Tokens:
    return Tokens(task_id=0, tokens=[1] * n, text="", timings=timings(total))


@pytest.fixture
def watched(monkeypatch):
    """A telemetry with metrics, whose clock goes one second with every look at it."""
    ticks = itertools.count(100.0)
    monkeypatch.setattr("corral.telemetry.dispatcher.perf_counter", lambda: next(ticks))
    registry, telemetry = CollectorRegistry(), Telemetry()
    telemetry.observers.append(TaskMetrics(registry, "m"))
    telemetry.on_slots(1)
    return telemetry, registry


def submitted(telemetry: Telemetry, record: RequestRecord) -> TaskFollower:
    negative = telemetry.follow(record)
    negative.on_submit(TASK)
    return negative


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


def test_tokens_that_come_together_share_their_time(watched):
    telemetry, registry = watched
    labels = {"key": "alice", "model": "m"}
    task = submitted(telemetry, RequestRecord(client=Client("alice"), started_at=0.0))
    task.on_result(Admitted(0, 0, 4, None, Tier.RAM))
    task.on_result(tokens(1, 1))
    assert value(registry, "corral_time_to_first_token_seconds_sum", **labels) >= 100
    task.on_result(tokens(4, 5))
    assert value(registry, "corral_time_between_tokens_seconds_count", **labels) == 4
    assert value(registry, "corral_time_between_tokens_seconds_sum", **labels) == pytest.approx(1)
    task.on_result(tokens(0, 5))
    assert value(registry, "corral_time_between_tokens_seconds_count", **labels) == 4


def test_another_engine_is_no_other_order(watched):
    telemetry, registry = watched
    labels = {"key": "", "model": "m"}
    task = submitted(telemetry, RequestRecord())
    task.on_result(Admitted(0, 0, 4, None, Tier.LIVE))
    task.on_result(tokens(2, 2))
    telemetry.on_slots(1)
    task.on_result(Admitted(0, 0, 0))
    task.on_result(tokens(1, 3))
    done = Done(
        task_id=0,
        stop_type=StopType.LIMIT,
        truncated=False,
        has_new_line=False,
        n_past=13,
        timings=timings(3),
    )
    task.on_result(done)
    task.on_end()
    assert [value(registry, f"{name}_count", **labels) for name in HISTOGRAMS] == [1, 1, 1, 0, 1, 1]
    assert value(registry, "corral_generated_tokens_sum", **labels) == 3
    # What the lost one had cached is of no use to the next.
    assert value(registry, "corral_cache_hits_total", tier="live") == 1
    assert value(registry, "corral_cache_hits_total", tier="none") == 1
    assert value(registry, "corral_cached_tokens_total", tier="live") == 4
