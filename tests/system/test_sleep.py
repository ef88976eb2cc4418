"""`--sleep-idle-seconds`: an engine that is gone while nobody needs it, and back when somebody does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.system.process import START_S, CorralProcess, wait_until
from tests.tools.wait import wait_until_async

HELLO = {"prompt": "Hello", "n_predict": 8, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def sleeper(modifiers, tmp_path_factory):
    """Sleeps after a second, and has everything that may wake it."""
    directory = tmp_path_factory.mktemp("adapters")
    shutil.copy(modifiers / "lora-a.gguf", directory)
    model = modifiers / "llama-bpe.gguf"
    options = (
        "--sleep-idle-seconds",
        1,
        "--context-shift",
        "--slots",
        "--slot-save-path",
        directory,
        "--metrics",
        "--lora-dir",
        directory,
    )
    with CorralProcess("-m", model, "-c", 2048, "-np", 2, *options) as server:
        yield server


def is_sleeping(server: CorralProcess) -> bool:
    return server.get("/props").json()["is_sleeping"]


def metrics_of(text: str) -> dict[str, float]:
    """llama-server's metrics, by their names without labels; an engine that is gone has no KV cache."""
    lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith("llamacpp:")]
    values = {name.partition("{")[0]: float(value) for name, _, value in lines}
    return {name: value for name, value in values.items() if not name.startswith("llamacpp:kv_cache")}


def wait_for_sleep(server: CorralProcess) -> None:
    """Until the process is gone, not only told to go."""
    deadline = time.monotonic() + START_S
    while not is_sleeping(server) or server.engines:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextlib.contextmanager
def kept_awake(server: CorralProcess) -> Iterator[None]:
    """Work without end for slot 1 meanwhile."""
    body = {**HELLO, "n_predict": -1, "id_slot": 1, "stream": True}
    with httpx.stream("POST", server.url + "/completion", json=body, timeout=START_S) as response:
        sent = response.iter_lines()  # the stream is closed with it
        next(sent)
        yield


def test_it_sleeps_without_its_process_and_looking_does_not_wake_it(sleeper):
    answer = sleeper.complete(**HELLO)
    sleeper.get("/metrics")  # rates are since the last scrape
    before = sleeper.get("/metrics").text
    wait_for_sleep(sleeper)
    for path in (
        "/health",
        "/ready",
        "/props",
        "/v1/models",
        "/models",
        "/metrics",
        "/slots",
        "/lora-adapters",
    ):
        assert sleeper.get(path).status_code == 200, path
    assert sleeper.get("/health").json() == {"status": "ok", "slots_idle": 2, "slots_processing": 0}
    assert [slot["is_processing"] for slot in sleeper.get("/slots").json()] == [False, False]
    assert metrics_of(sleeper.get("/metrics").text) == metrics_of(before)
    time.sleep(2)
    assert sleeper.engines == []
    assert is_sleeping(sleeper) is True
    assert sleeper.complete(**HELLO)["content"] == answer["content"]
    with kept_awake(sleeper):
        assert is_sleeping(sleeper) is False
    after = metrics_of(sleeper.get("/metrics").text)
    totals = {name: n for name, n in metrics_of(before).items() if name.endswith("_total")}
    assert {"llamacpp:n_decode_total", "llamacpp:tokens_predicted_total"} <= set(totals)
    assert [name for name, n in totals.items() if after[name] < n] == []  # another engine counts on


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/completion", HELLO),
        ("/completion", {**HELLO, "stream": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}),
        ("/embedding", {"content": "Hello"}),
        ("/slots/0?action=tokens", {}),
        ("/slots/1?action=erase", {}),
        ("/lora-adapters/load", {"name": "lora-a"}),
        ("/tokenize", {"content": "Hello"}),
        ("/apply-template", {"messages": [{"role": "user", "content": "Hello"}]}),
        ("/v1/messages/count_tokens", {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}),
    ],
)
def test_what_needs_an_engine_wakes_it_and_only_waits(sleeper, path, body):
    wait_for_sleep(sleeper)
    n = len(sleeper.lines)
    response = sleeper.post(path, **body)
    assert response.status_code == 200, response.text
    wait_until(lambda: "loading the engine again" in "".join(sleeper.lines[n:]))


def test_an_adapter_that_was_loaded_is_there_again_after_a_sleep(sleeper):
    if not sleeper.get("/lora-adapters").json():
        assert sleeper.post("/lora-adapters/load", name="lora-a").status_code == 200
    body = {**HELLO, "n_predict": 24, "lora": [{"id": 0, "scale": 1.0}]}
    adapted = sleeper.complete(**body)["content"]
    assert adapted != sleeper.complete(**{**body, "lora": [{"id": 0, "scale": 0.0}]})["content"]
    wait_for_sleep(sleeper)
    assert sleeper.complete(**body)["content"] == adapted


def test_sessions_survive_and_slots_are_empty(sleeper):
    with kept_awake(sleeper):
        sleeper.complete(**HELLO, id_slot=0)
        saved = sleeper.post("/sessions/kept?action=save&slot=0").json()
    wait_for_sleep(sleeper)
    assert sleeper.post("/slots/0?action=tokens").json()["n_tokens"] == 0
    restored = sleeper.post("/sessions/kept?action=restore&slot=0").json()
    assert restored["n_tokens"] == saved["n_tokens"] > 0


def test_work_that_takes_longer_keeps_it_awake(sleeper):
    with ThreadPoolExecutor(8) as pool:
        work = [pool.submit(sleeper.complete, **{**HELLO, "n_predict": 900}) for _ in range(8)]
        wait_until(lambda: sleeper.get("/health").json()["slots_processing"])
        first = sleeper.engine.pid
        while not all(answer.done() for answer in work):
            pids, is_awake = [engine.pid for engine in sleeper.engines], is_sleeping(sleeper) is False
            if not all(answer.done() for answer in work):
                assert (pids, is_awake) == ([first], True)
            time.sleep(0.02)  # the engine needs the CPU
    assert [answer.result()["tokens_predicted"] for answer in work] == [900] * 8


async def test_all_who_come_at_once_are_answered(sleeper):
    expected = (await asyncio.to_thread(sleeper.complete, **HELLO))["content"]
    await asyncio.to_thread(wait_for_sleep, sleeper)
    answers = await asyncio.gather(*(asyncio.to_thread(sleeper.complete, **HELLO) for _ in range(6)))
    assert [answer["content"] for answer in answers] == [expected] * 6


async def test_a_client_that_leaves_while_it_wakes_up_leaves_nothing_behind(sleeper):
    await asyncio.to_thread(wait_for_sleep, sleeper)
    n = len(sleeper.lines)
    async with httpx.AsyncClient(timeout=START_S) as http:
        asking = asyncio.create_task(http.post(sleeper.url + "/completion", json=HELLO))
        await wait_until_async(lambda: "loading the engine again" in "".join(sleeper.lines[n:]))
        asking.cancel()
    await asyncio.to_thread(wait_for_sleep, sleeper)
    assert sleeper.get("/health").json()["slots_idle"] == 2


def test_requests_around_the_moment_of_falling_asleep_are_all_answered(sleeper):
    rng = random.Random(7)
    expected = sleeper.complete(**HELLO)["content"]
    for _ in range(4):
        time.sleep(rng.uniform(0.9, 1.8))
        assert sleeper.complete(**HELLO)["content"] == expected


def test_what_it_says_about_it(sleeper):
    wait_for_sleep(sleeper)
    n = len(sleeper.lines)
    sleeper.complete(**HELLO)
    wait_for_sleep(sleeper)
    wait_until(lambda: "engine unloaded" in "".join(sleeper.lines[n:]).partition("loading the engine")[2])
    said = [line.partition(" ")[2].strip() for line in sleeper.lines if "HTTP" not in line]
    about = [line for line in said if not line.startswith(("GET ", "POST ", "engine: "))]
    assert about[-2:] == [
        "loading the engine again",
        "idle for 1 s: engine unloaded until the next request",
    ]


def test_a_lost_engine_does_not_confuse_it(sleeper):
    body = {"model": "any", "prompt": "Hello", "options": {"num_predict": 4}, "stream": False}
    awake = sleeper.post("/api/generate", **body, keep_alive="10m")
    assert awake.status_code == 200, awake.text
    sleeper.engine.kill()
    sleeper.wait_for("engine lost")
    wait_for_sleep(sleeper)
    sleeper.complete(**HELLO)


def test_prompts_come_back_from_disk(tiny, tmp_path):
    options = ("--sleep-idle-seconds", 1, "--cache-disk", tmp_path)
    with CorralProcess("-m", tiny, "-c", 512, *options) as server:
        prompt = "Once upon a time there was a horse that lived in a corral. " * 4
        fresh = server.complete(**{**HELLO, "prompt": prompt})
        wait_for_sleep(server)
        again = server.complete(**{**HELLO, "prompt": prompt})
        assert again["content"] == fresh["content"]
        assert again["timings"]["cache_n"] > again["timings"]["prompt_n"]


def test_one_that_cannot_wake_up_is_told_with_the_reason(tiny, tmp_path):
    model = shutil.copy(tiny, tmp_path / "vanishing.gguf")
    options = ("--sleep-idle-seconds", 1, "--engine-restarts", 1)
    with CorralProcess("-m", model, "-c", 512, *options) as server:
        wait_for_sleep(server)
        os.rename(model, tmp_path / "elsewhere.gguf")
        response = server.post("/completion", **HELLO)
        assert response.status_code == 503
        message = response.json()["error"]["message"]
        assert message.startswith("The engine is down: model '")
        assert message.endswith("vanishing.gguf': the file does not exist")
        assert server.get("/health").json()["error"]["message"] == message
        assert server.get("/props").json()["is_sleeping"] is False
        assert server.stop() == 0


async def test_one_that_cannot_wake_up_at_first_wakes_up_later(tiny, tmp_path):
    model = shutil.copy(tiny, tmp_path / "returning.gguf")
    with CorralProcess("-m", model, "-c", 512, "--sleep-idle-seconds", 1, "--slots") as server:
        await asyncio.to_thread(wait_for_sleep, server)
        os.rename(model, tmp_path / "elsewhere.gguf")
        asking = [
            asyncio.create_task(asyncio.to_thread(server.get, "/slots/0/info")),
            asyncio.create_task(asyncio.to_thread(server.post, "/completion", **HELLO)),
        ]
        await asyncio.to_thread(server.wait_for, "engine lost")
        os.rename(tmp_path / "elsewhere.gguf", model)
        assert [response.status_code for response in await asyncio.gather(*asking)] == [200, 200]


@pytest.mark.parametrize("moment", ["asleep", "waking", "falling asleep"])
def test_the_end_comes_also_then(tiny, tmp_path, moment):
    with CorralProcess("-m", tiny, "-c", 512, "--sleep-idle-seconds", 1, "--cache-disk", tmp_path) as server:
        if moment == "falling asleep":
            server.complete(**HELLO)
            server.wait_for("engine unloaded")
        else:
            wait_for_sleep(server)
        if moment == "waking":
            with httpx.Client() as http, pytest.raises(httpx.ReadTimeout):
                http.post(server.url + "/completion", json=HELLO, timeout=httpx.Timeout(START_S, read=0.05))
            server.wait_for("loading the engine again")
        server.process.send_signal(signal.SIGTERM)
        assert server.stop() == 0
        assert "Traceback" not in "".join(server.lines)
