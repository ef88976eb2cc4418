"""A model file whose chat template is hostile: chats get an error, everybody else an answer."""

from __future__ import annotations

import resource
import signal
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest

from tests.system.process import START_S, CorralProcess, wait_until

N_HOSTILE = 2
# `compare`: two values of 2^60 parts, in a single call of the interpreter.
SOURCE = """{%- for message in messages %}{% if message.content == 'compare' %}
{%- set a = namespace(x=[1], y=[1]) %}
{%- for i in range(60) %}{% set a.x = [a.x, a.x] %}{% set a.y = [a.y, a.y] %}{% endfor %}{{ a.x == a.y }}
{%- elif message.content == 'loop' %}
{%- for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}
{%- elif message.content == 'grow' %}{{ 'a' | center(999999999) }}
{%- else %}{{ message.content }}{% endif %}{% endfor %}"""


@pytest.fixture(scope="module")
def server(tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("templates") / "hostile.jinja"
    path.write_text(SOURCE)
    with CorralProcess("-m", tiny, "-c", 2048, "-np", 2, "--chat-template-file", path) as server:
        yield server


def chat(server: CorralProcess, text: str):
    messages = [{"role": "user", "content": text}]
    return server.post("/v1/chat/completions", messages=messages, max_tokens=2)


@pytest.mark.parametrize("attack", ["loop", "compare", "grow"])
def test_others_are_answered_while_a_template_runs(server, attack):
    with ThreadPoolExecutor(N_HOSTILE) as pool:
        attacks = [pool.submit(chat, server, attack) for _ in range(N_HOSTILE)]
        is_over = False
        while not is_over:
            is_over = all(each.done() for each in attacks)
            assert server.complete(prompt="a", n_predict=1)["tokens_predicted"] == 1
            assert server.get("/health").status_code == 200
    for each in attacks:
        error = each.result().json()["error"]
        assert (error["code"], error["type"]) == (400, "invalid_request_error")
    assert chat(server, "hello").status_code == 200


def test_a_lost_template_process_is_replaced(server):
    assert chat(server, "hello").status_code == 200
    lost = server.renderer
    lost.send_signal(signal.SIGKILL)
    wait_until(lambda: not lost.is_running() or lost.status() == "zombie")
    assert chat(server, "hello").status_code == 200
    assert server.renderer.pid != lost.pid


def test_a_stopped_template_process_holds_up_no_chat_for_long(tiny):
    """For the time without a sign of life that is allowed, and not for the time that a template may take."""
    with CorralProcess("-m", tiny, "-c", 512, "--engine-timeout", 3) as server:
        stopped = server.renderer
        stopped.suspend()
        answer = chat(server, "hello")
        assert answer.status_code == 200
        assert not stopped.is_running() or stopped.status() == "zombie"
        wait_until(lambda: server.get("/ready").status_code == 200)


@pytest.mark.parametrize("name", ["tokenizer", "renderer"])
def test_the_server_is_not_ready_without_its_processes(tiny, name):
    with CorralProcess("-m", tiny, "-c", 512, "--engine-timeout", 8) as server:
        assert server.get("/ready").status_code == 200
        stopped = getattr(server, name)
        stopped.suspend()
        wait_until(lambda: server.get("/ready").status_code == 503)
        assert name in server.get("/ready").json()["error"]["message"]
        assert server.get("/health").status_code == 200
        wait_until(lambda: server.get("/ready").status_code == 200)  # it is replaced without a request


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of others cannot be set here")
@pytest.mark.parametrize("name", ["tokenizer", "renderer"])
def test_a_process_that_finds_no_descriptors_at_its_restart_comes_back(tiny, name):
    """Its watcher ended with the first OSError, and texts waited for ever."""
    with CorralProcess("-m", tiny, "-c", 512) as server:
        pid = server.process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        with httpx.Client(base_url=server.url, timeout=START_S) as client:
            assert client.get("/ready").status_code == 200  # a connection that needs no further descriptor
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (psutil.Process(pid).num_fds(), hard))
            getattr(server, name).kill()
            server.wait_for(f"{name} process cannot be started: Too many open files; restart")
            refused = client.get("/ready")
            assert (refused.status_code, name in refused.text) == (503, True)
            assert client.get("/health").status_code == 200
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert chat(server, "hello").status_code in (200, 503)
        wait_until(lambda: server.get("/ready").status_code == 200)
        assert chat(server, "hello").status_code == 200


def test_the_template_process_ends_with_the_server(tiny):
    with CorralProcess("-m", tiny, "-c", 256) as server:
        renderer = server.renderer
        assert server.stop() == 0
    assert psutil.wait_procs([renderer], timeout=START_S)[1] == []
