"""GET /metrics: numbers that are true, under the names that dashboards look for."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from corral.core.errors import ErrorInfo
from corral.core.params import GenerationParams
from corral.core.result import (
    Admitted,
    Begun,
    Done,
    Embedded,
    Failed,
    Progress,
    StopType,
    Timings,
    Tokens,
    Vectors,
)
from corral.core.task import Embed, Task
from corral.link.engine_state import EngineState
from corral.telemetry.counters import TokenCounters
from corral.telemetry.dispatcher import TaskFollower, Telemetry
from corral.telemetry.record import RequestRecord
from tests.contract.inline import Server

DOCUMENTED = {
    "llamacpp:prompt_tokens_total": "counter",
    "llamacpp:tokens_predicted_total": "counter",
    "llamacpp:prompt_tokens_seconds": "gauge",
    "llamacpp:predicted_tokens_seconds": "gauge",
    "llamacpp:kv_cache_usage_ratio": "gauge",
    "llamacpp:kv_cache_tokens": "gauge",
    "llamacpp:requests_processing": "gauge",
    "llamacpp:requests_deferred": "gauge",
    "llamacpp:prompt_seconds_total": "counter",
    "llamacpp:tokens_predicted_seconds_total": "counter",
    "llamacpp:prompt_tokens_cached_total": "counter",
    "llamacpp:n_tokens_max": "counter",
    "llamacpp:n_decode_total": "counter",
    "llamacpp:n_busy_slots_per_decode": "gauge",
    "llamacpp:spec_decode_num_drafts_total": "counter",
    "llamacpp:spec_decode_num_draft_tokens_total": "counter",
    "llamacpp:spec_decode_num_accepted_tokens_total": "counter",
}


async def read(server: Server) -> dict[str, float]:
    """What is shown under the names of llama-server."""
    response = await server.http.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    values = {}
    for family in text_string_to_metric_families(response.text):
        assert family.documentation
        if family.name.startswith("llamacpp:"):
            (sample,) = family.samples
            values[sample.name.removeprefix("llamacpp:")] = sample.value
    return values


async def test_names_are_spelled_as_everywhere():
    text = (await Server(metrics=True).http.get("/metrics")).text
    lines = text.splitlines()
    for name, kind in DOCUMENTED.items():
        assert f"# TYPE {name} {kind}" in lines
        assert any(line.startswith(f"{name} ") for line in lines)
        assert any(line.startswith(f"# HELP {name} ") for line in lines)


async def test_metrics_are_off_unless_asked_for():
    server = Server()
    response = await server.http.get("/metrics")
    assert response.status_code == 501
    assert response.json()["error"]["type"] == "not_supported_error"
    assert "--metrics" in response.json()["error"]["message"]
    assert (await server.http.get("/props")).json()["endpoint_metrics"] is False
    assert (await Server(metrics=True).http.get("/props")).json()["endpoint_metrics"] is True


async def test_a_server_that_has_done_nothing():
    for is_open in (True, False):
        assert set((await read(Server(metrics=True, is_open=is_open))).values()) == {0.0}


async def test_a_sleeping_engine_keeps_the_use_of_its_cache():
    server = Server(metrics=True)
    await server.complete(prompt="hello", n_predict=5, ignore_eos=True)
    before = await read(server)
    server.engine.telemetry.on_slots(4)
    server.engine.state = EngineState.SLEEPING
    asleep = await read(server)
    for name in ("kv_cache_usage_ratio", "kv_cache_tokens"):
        assert asleep[name] == before[name] > 0


async def test_what_was_cached_was_not_evaluated():
    server = Server(metrics=True)
    first = await server.complete(prompt="hello there " * 8, n_predict=5, ignore_eos=True)
    values = await read(server)
    assert values["prompt_tokens_total"] == first["timings"]["prompt_n"] == first["tokens_evaluated"]
    assert values["tokens_predicted_total"] == 5
    assert values["prompt_seconds_total"] == pytest.approx(first["timings"]["prompt_ms"] / 1e3)
    assert values["tokens_predicted_seconds_total"] == pytest.approx(first["timings"]["predicted_ms"] / 1e3)
    assert values["kv_cache_tokens"] == first["tokens_cached"]
    assert values["kv_cache_usage_ratio"] == first["tokens_cached"] / (4 * 256)
    second = await server.complete(prompt="hello there " * 8, n_predict=2, ignore_eos=True)
    assert second["timings"]["cache_n"] > 0
    values = await read(server)
    n_prompt = first["timings"]["prompt_n"] + second["timings"]["prompt_n"]
    assert values["prompt_tokens_total"] == n_prompt < 2 * first["timings"]["prompt_n"]
    assert values["tokens_predicted_total"] == 7
    assert values["prompt_tokens_cached_total"] == second["timings"]["cache_n"]
    n_most = values["n_tokens_max_total"]  # the parser gives every counter this ending
    assert n_most == first["tokens_evaluated"] + 4, "the last token was not evaluated"
    timings = second["timings"]
    assert values["prompt_tokens_seconds"] == pytest.approx(1e3 * timings["prompt_n"] / timings["prompt_ms"])
    assert values["predicted_tokens_seconds"] == pytest.approx(timings["predicted_per_second"])
    assert values["n_decode_total"] >= 2 + 4 + 1
    assert values["n_busy_slots_per_decode"] == 1
    values = await read(server)
    assert (values["prompt_tokens_seconds"], values["predicted_tokens_seconds"]) == (0, 0), (
        "since the last scrape"
    )


async def test_streams_and_choices_count_as_what_they_are():
    server = Server(metrics=True)
    body = {"prompt": ["a", "bc"], "max_tokens": 3, "n": 2, "stream": True, "ignore_eos": True}
    await server.http.post("/v1/completions", json=body)
    assert (await read(server))["tokens_predicted_total"] == 12


async def test_requests_that_wait_and_that_are_worked_on():
    server = Server(metrics=True)
    server.engine.is_paused = True
    body = {"prompt": "hello", "n_predict": 50, "ignore_eos": True}
    requests = [asyncio.create_task(server.http.post("/completion", json=body)) for _ in range(6)]
    while server.engine.n_tasks < 6:
        await asyncio.sleep(0)
    assert (await read(server))["requests_deferred"] == 6
    server.engine.step()
    server.engine.step()
    values = await read(server)
    assert (values["requests_processing"], values["requests_deferred"]) == (4, 2)
    requests.pop().cancel()
    server.engine.is_paused = False
    for request in requests:
        await request
    values = await read(server)
    assert (values["requests_processing"], values["requests_deferred"]) == (0, 0)
    assert values["tokens_predicted_total"] >= 250


async def test_a_client_that_leaves_has_caused_work():
    server = Server(metrics=True)
    server.engine.is_paused = True
    body = {"prompt": "hello", "n_predict": 50, "ignore_eos": True}
    request = asyncio.create_task(server.http.post("/completion", json=body))
    while not server.engine.n_tasks:
        await asyncio.sleep(0)
    for _ in range(4):
        server.engine.step()
    request.cancel()
    await asyncio.wait({request})
    values = await read(server)
    assert values["prompt_tokens_total"] == 5
    assert 0 < values["tokens_predicted_total"] < 50
    assert values["requests_processing"] == 0


def timings(prompt_n: int, prompt_ms: float, predicted_n: int, predicted_ms: float) -> Timings:
    return Timings(
        cache_n=0, prompt_n=prompt_n, prompt_ms=prompt_ms, predicted_n=predicted_n, predicted_ms=predicted_ms
    )


def tokens(n: int, t: Timings) -> Tokens:
    return Tokens(task_id=0, tokens=[1] * n, text="", timings=t)


def done(n_past: int, t: Timings) -> Done:
    return Done(
        task_id=0, stop_type=StopType.LIMIT, truncated=False, has_new_line=False, n_past=n_past, timings=t
    )


TASK = Task(id=0, prompt=[1] * 10, params=GenerationParams())


def sums(counters: TokenCounters) -> tuple[float, ...]:
    return counters.n_prompt, counters.prompt_ms, counters.n_predicted, counters.predicted_ms


def submitted(telemetry: Telemetry) -> TaskFollower:
    negative = telemetry.follow(RequestRecord())
    negative.on_submit(TASK)
    return negative


def test_a_long_prompt_counts_as_it_goes():
    telemetry = Telemetry()
    telemetry.on_slots(1)
    task, slots, counters = submitted(telemetry), telemetry.slots, telemetry.counters
    task.on_result(Admitted(0, 0, 4))
    assert (sums(counters), slots.n_held) == ((0, 0, 0, 0), 4)
    task.on_result(Progress(0, 7, 30.0))
    assert (sums(counters), slots.n_held) == ((3, 30, 0, 0), 7)
    task.on_result(Progress(0, 10, 60.0))
    task.on_result(tokens(1, timings(6, 61.0, 1, 0.0)))
    assert (sums(counters), slots.n_held) == ((6, 61, 1, 0), 10)
    task.on_result(tokens(2, timings(6, 61.0, 3, 20.0)))
    assert slots.n_held == 12
    task.on_result(done(12, timings(6, 61.0, 3, 21.0)))
    task.on_end()
    assert (sums(counters), slots.n_held) == ((6, 61, 3, 21), 12)
    assert (telemetry.queue.n_running, telemetry.queue.n_waiting) == (0, 0)


def test_counts_survive_an_engine_and_tokens_count_once():
    telemetry = Telemetry()
    telemetry.on_slots(1)
    task, queue = submitted(telemetry), telemetry.queue
    task.on_result(Admitted(0, 0, 0))
    task.on_result(tokens(3, timings(10, 50.0, 3, 20.0)))
    telemetry.on_slots(1)
    assert (queue.n_running, queue.n_waiting, telemetry.slots.n_held) == (0, 1, 0)
    task.on_result(Admitted(0, 0, 0))
    assert (queue.n_running, queue.n_waiting) == (1, 0)
    # The next engine evaluates prompt and tokens again; the client gets only the new ones.
    task.on_result(tokens(1, timings(10, 40.0, 4, 30.0)))
    task.on_result(done(13, timings(10, 40.0, 5, 40.0)))
    assert sums(telemetry.counters) == (20, 90, 5, 60)


@pytest.mark.parametrize(
    "last", [[Failed(0, ErrorInfo(["CorralError"], "y"))], []], ids=["failed", "cancelled"]
)
def test_a_task_that_ends_early_leaves_nothing_in_the_tables(last):
    telemetry = Telemetry()
    telemetry.on_slots(2)
    for _ in range(2):
        task = submitted(telemetry)
        assert telemetry.queue.n_waiting == 1
        for result in (Admitted(0, 1, 0), *last):
            task.on_result(result)
        task.on_end()
        assert (telemetry.queue.n_running, telemetry.queue.n_waiting) == (0, 0)
        assert (telemetry.slots.n_idle, telemetry.followers, telemetry.counters._shares) == (2, {}, {})


def test_inputs_that_are_embedded_together_take_their_time_once():
    now = 0.0
    counters = TokenCounters(clock=lambda: now)
    first, second = (Embed(id=i, inputs=[[1] * 5, [1] * 7]) for i in (1, 2))
    now = 10.0
    counters.on_result(Begun(1), first)
    now = 11.0
    counters.on_result(Begun(2), second)
    counters.on_result(Vectors(task_id=1, index=1, data=b""), first)
    now = 13.0
    counters.on_result(Vectors(task_id=2, index=0, data=b""), second)
    assert (counters.n_prompt, counters.prompt_ms) == (12, 3000)
    for order in (first, second):
        counters.on_result(Embedded(order.id), order)
        counters.on_end(order.id)
    now = 99.0
    counters.on_result(Begun(3), Embed(id=3, inputs=[[1]]))
    assert (counters.n_prompt, counters.prompt_ms) == (12, 3000)


async def test_embedding_counts_its_tokens():
    server = Server(metrics=True)
    response = await server.http.post("/embedding", json={"content": ["hello", "you"]})
    assert response.status_code == 200, response.text
    values = await read(server)
    assert values["prompt_tokens_total"] >= len("hello") + len("you")
    assert values["prompt_seconds_total"] > 0
    assert values["requests_processing"] == values["requests_deferred"] == 0
