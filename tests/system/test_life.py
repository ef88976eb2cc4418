"""Starting, staying quiet, losing an engine for good, and stopping in every state."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import threading
import time
from functools import partial
from typing import Any

import httpx
import psutil
import pytest

from tests.system.process import START_S, CorralProcess, Stream, run_corral, wait_until

ENDLESS: dict[str, Any] = {"prompt": "Once upon a time", "n_predict": -1, "ignore_eos": True}


def test_a_broken_model_ends_with_a_message(tmp_path):
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 64)
    result = run_corral("-m", path, "--port", 0)
    assert result.returncode == 1
    assert "broken.gguf': " in result.stderr
    assert "Traceback" not in result.stderr


def test_it_says_what_it_does_and_ends_with_the_signal():
    with CorralProcess("-np", 2, "-c", 1024) as server:
        engine = server.engine
        printed = "".join(server.lines)
        assert "loading" in printed
        assert server.url in printed
        assert "Q4_1" in printed
        server.wait_for(r"slots +2, each with a context of 512 tokens")
        assert server.stop() == 0
        assert psutil.wait_procs([engine], timeout=START_S)[1] == []


def test_the_engine_does_not_outlive_a_killed_front(tiny):
    server = CorralProcess("-m", tiny, "-c", 512)
    engine = server.engine
    server.process.kill()
    server.stop()
    assert psutil.wait_procs([engine], timeout=START_S)[1] == []


async def test_a_running_request_is_finished_before_the_end(tiny):
    server = CorralProcess("-m", tiny, "-c", 4096)
    stream = Stream(server.url, prompt="Once upon a time", n_predict=2000, ignore_eos=True)
    await stream.reach(3)
    server.process.send_signal(signal.SIGTERM)
    await stream.task
    assert len(stream.tokens) == 2000
    assert await asyncio.to_thread(server.stop) == 0


def test_an_idle_server_costs_nothing(corral):
    corral.complete(prompt="Hello", n_predict=4)
    processes = [corral.engine, psutil.Process(corral.process.pid)]

    def are_idle(seconds: int = 3) -> bool:
        before = [sum(p.cpu_times()[:2]) for p in processes]
        time.sleep(seconds)
        after = [sum(p.cpu_times()[:2]) for p in processes]
        return all(b - a < 0.1 * seconds for a, b in zip(before, after, strict=True))

    wait_until(are_idle)  # once what the engine has put off until a pause is done


def n_deferred(server: CorralProcess) -> int:
    return int(re.search(r"llamacpp:requests_deferred (\d+)", server.get("/metrics").text)[1])


def error_of(response: httpx.Response) -> str:
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (503, 503, "unavailable_error")
    return error["message"]


@contextlib.contextmanager
def posted(server: CorralProcess, *bodies: dict):
    """Requests that run meanwhile; their answers, once this is over."""
    answers: list[httpx.Response] = []
    threads = [
        threading.Thread(target=lambda body=body: answers.append(server.post("/completion", **body)))
        for body in bodies
    ]
    for thread in threads:
        thread.start()
    yield answers
    for thread in threads:
        thread.join()


# --- an engine that cannot be replaced


@pytest.fixture
def doomed(tiny, tmp_path):
    """A server whose engine is the last one."""
    model = shutil.copy(tiny, tmp_path / "vanishing.gguf")
    options = ("--context-shift", "--engine-restarts", 1, "--metrics", "--slots")
    with CorralProcess("-m", model, "-c", 512, *options) as server:
        server.complete(prompt="a", n_predict=1)
        os.unlink(model)
        yield server


def test_an_engine_that_is_lost_for_good_is_told_with_the_reason_and_the_front_lives_on(doomed):
    with posted(doomed, *[ENDLESS] * 3) as answers:
        wait_until(lambda: doomed.get("/health").json()["slots_processing"] == 1)
        doomed.engine.kill()
        wait_until(lambda: "The engine is down" in doomed.get("/health").text)
    for path in ("/health", "/ready"):
        message = error_of(doomed.get(path))
        assert message.startswith("The engine is down: model '")
        assert message.endswith("vanishing.gguf': the file does not exist")
    assert [error_of(answer) for answer in answers] == [message] * 3
    assert error_of(doomed.post("/completion", prompt="a")) == message
    assert (
        error_of(doomed.post("/v1/chat/completions", messages=[{"role": "user", "content": "a"}])) == message
    )
    for path in ("/metrics", "/props", "/v1/models"):
        assert doomed.get(path).status_code == 200, path
    assert doomed.post("/tokenize", content="a").status_code == 200
    wait_until(lambda: not doomed.engines)
    assert doomed.stop() == 0
    printed = "".join(doomed.lines)
    assert "restart 1" in printed
    assert "restart 2 in 0.5 s" in printed
    assert "error: the engine is down: model '" in printed
    assert "Traceback" not in printed


def is_replaced(server: CorralProcess, lost: psutil.Process) -> bool:
    return server.engines not in ([], [lost])


def test_a_task_that_was_worked_on_survives_engines_that_are_killed_while_they_load(tiny):
    """More of them than the limit would allow, had they failed by themselves one after the other."""
    with CorralProcess("-m", tiny, "-c", 512, "--engine-restarts", 2) as server:
        for _ in range(3):
            expected = server.complete(prompt="Hello", n_predict=8, temperature=0)["content"]
            for _ in range(2):
                lost = server.engine
                lost.kill()
                wait_until(partial(is_replaced, server, lost))
            assert server.complete(prompt="Hello", n_predict=8, temperature=0)["content"] == expected


# --- health


def test_a_stopped_engine_is_told_before_it_is_given_up(tiny):
    with CorralProcess("-m", tiny, "-c", 512, "--engine-timeout", 30) as server:
        engine = server.engine
        engine.suspend()
        wait_until(lambda: server.get("/health").status_code == 503)
        assert error_of(server.get("/health")) == "The engine does not respond"
        assert error_of(server.get("/ready")) == "The engine does not respond"
        engine.resume()
        wait_until(lambda: server.get("/health").status_code == 200)
        assert server.get("/ready").json() == {"status": "ready"}
        assert server.engine.pid == engine.pid


@pytest.mark.slow
def test_a_front_that_was_stopped_itself_blames_nobody(tiny):
    with CorralProcess("-m", tiny, "-c", 512, "--engine-timeout", 2) as server:
        engine, front = server.engine, psutil.Process(server.process.pid)
        for _ in range(3):
            front.suspend()
            time.sleep(3)
            front.resume()
            assert [server.get("/health").status_code for _ in range(50)] == [200] * 50
        assert server.engine.pid == engine.pid


# --- the end


def test_requests_in_the_queue_are_answered_before_the_end(tiny):
    with CorralProcess("-m", tiny, "-c", 4096, "-np", 1, "--metrics") as server:
        body = {"prompt": "Hello", "n_predict": 600, "ignore_eos": True}
        with posted(server, *[body] * 4) as answers:
            wait_until(lambda: n_deferred(server) + len(answers) >= 3)
            assert server.stop() == 0
        assert [answer.json()["tokens_predicted"] for answer in answers] == [600] * 4


@pytest.mark.parametrize("ending", ["timeout", "second signal"])
def test_who_cannot_be_waited_for_is_told(tiny, ending):
    timeout = 3 if ending == "timeout" else 600
    options = ("-c", 4096, "-np", 1, "--context-shift", "--timeout", timeout, "--metrics")
    with CorralProcess("-m", tiny, *options) as server:
        with posted(server, *[ENDLESS] * 3) as answers:
            wait_until(lambda: answers or n_deferred(server) == 2)
            assert not answers, answers[0].text
            server.process.send_signal(signal.SIGTERM)
            if ending == "second signal":
                server.wait_for("stopping after running requests are done")
                server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(START_S) == 0
        assert [error_of(answer) for answer in answers] == ["the server is shutting down"] * 3
    printed = "".join(server.lines)
    assert ("stopping at once" in printed) is (ending == "second signal")
    assert ("--timeout expired" in printed) is (ending == "timeout")
    assert "Traceback" not in printed


async def test_a_stream_that_is_cut_short_ends_with_an_error(tiny):
    with CorralProcess("-m", tiny, "-c", 4096, "--context-shift", "--timeout", 1) as server:
        stream = Stream(server.url, **ENDLESS)
        await stream.reach(3)
        server.process.send_signal(signal.SIGTERM)
        await stream.task
        assert stream.events[-1]["error"]["message"] == "the server is shutting down"
        assert await asyncio.to_thread(server.process.wait, START_S) == 0


@pytest.mark.parametrize(
    "start",
    [
        "POST /completion HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100000\r\n\r\n",
        "POST /completion HTTP/1.1\r\nhost: 127.0.0.1\r\nx-slow: ",
    ],
    ids=["body", "head"],
)
def test_a_client_that_sends_slowly_does_not_delay_the_end(tiny, start):
    with CorralProcess("-m", tiny, "-c", 512, "--timeout", 1) as server:
        host, port = server.url.removeprefix("http://").split(":")
        is_over = threading.Event()

        def trickle() -> None:
            with contextlib.suppress(OSError), socket.create_connection((host, int(port))) as client:
                client.sendall(start.encode())
                while not is_over.wait(0.1):
                    client.sendall(b" ")

        client = threading.Thread(target=trickle)
        client.start()
        try:
            front = psutil.Process(server.process.pid)
            wait_until(lambda: any(c.status == psutil.CONN_ESTABLISHED for c in front.net_connections()))
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(START_S) == 0
        finally:
            is_over.set()
            client.join()
        assert "Traceback" not in "".join(server.lines)


def test_the_end_comes_also_while_the_engine_is_being_replaced(tiny):
    with CorralProcess("-m", tiny, "-c", 2048) as server:
        with posted(server, {"prompt": "Hello", "n_predict": 1500, "ignore_eos": True}) as answers:
            wait_until(lambda: server.get("/health").json()["slots_processing"] == 1)
            server.engine.kill()
            server.wait_for("engine lost")
            assert server.stop() == 0
        assert [answer.json()["tokens_predicted"] for answer in answers] == [1500]


def test_the_end_comes_also_while_nothing_waits_for_the_next_engine(tiny):
    with CorralProcess("-m", tiny, "-c", 512) as server:
        server.engine.kill()
        server.wait_for("engine lost")
        assert server.stop() == 0
        assert "Traceback" not in "".join(server.lines)
