"""The real command while it starts, with what takes long held up for as long as the test likes."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.system.process import START_S, CorralProcess, children, wait_until

LOADING: dict[str, Any] = {
    "error": {
        "code": 503,
        "message": "Loading model",
        "type": "unavailable_error",
        "stage": "loading",
        "progress": 0.0,
        "detail": "",
    }
}
FRONT, ENGINE = "starlette.applications", "corral.engine"  # what only one of the processes imports
# Python runs this at its start; whoever imports one of the modules waits for a file with its name.
_SITE = """
import importlib.machinery, os, sys, time

class Hold:
    def find_spec(self, name, path=None, target=None):
        if name not in ("starlette.applications", "corral.engine"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module

        def run_when_released(module):  # `find_spec` itself runs under a lock that stops every import
            while not os.path.exists(os.path.join(os.path.dirname(__file__), name)):
                time.sleep(0.01)
            run(module)

        spec.loader.exec_module = run_when_released
        return spec

sys.meta_path.insert(0, Hold())
"""
# Writes the names of all modules that a process imports, in order.
_RECORD = """
import os, sys

class Record:
    def find_spec(self, name, path=None, target=None):
        with open(os.path.join(os.path.dirname(__file__), str(os.getpid())), "a") as file:
            file.write(name + "\\n")

sys.meta_path.insert(0, Record())
"""
AFTER_LISTENING = "corral.models.text_processes"  # what the front imports first then
_LATER = {"llguidance", "jinja2", "httpx", "huggingface_hub", "rich", "PIL", "soundfile", "pypdf", "ray"}
_WEB = {"asyncio", "uvicorn", "starlette", "pydantic", "anyio"}
# What a plain start does without, by process.
UNUSED = {
    "front": {*_LATER, "llama_cpp", "referencing", "diskcache", "prometheus_client", "opentelemetry"},
    "worker": {*_LATER, *_WEB} - {"asyncio"},
    "tokenizer_worker": {*_LATER, *_WEB, "numpy", "psutil", "corral.engine"},
    "renderer_worker": {*_LATER, *_WEB, "numpy", "psutil", "llama_cpp", "corral.engine"} - {"jinja2"},
}
_STABLE = ("content-type", "content-length", "vary")


class HeldServer(CorralProcess):
    """Listens, and has neither an application nor an engine before they are released."""

    def __init__(self, directory: Path, *options: object) -> None:
        (directory / "sitecustomize.py").write_text(_SITE)
        self._directory = directory
        super().__init__(*options, wait=False, env={"PYTHONPATH": str(directory)})
        self.url = self.wait_for(r"listening on ([^\s,]+)")

    def release(self, *names: str) -> None:
        for name in names:
            (self._directory / name).touch()

    def __exit__(self, *_: object) -> None:
        self.release(FRONT, ENGINE)
        self.stop()


@contextlib.contextmanager
def sent(server: CorralProcess, *requests: tuple[str, str]) -> Iterator[list[Future[httpx.Response]]]:
    """Requests that wait for their answers meanwhile."""
    with ThreadPoolExecutor(len(requests)) as pool:
        ask = [
            pool.submit(httpx.request, method, server.url + path, timeout=START_S)
            for method, path in requests
        ]
        wait_until(lambda: n_accepted(server) >= len(requests))
        yield ask


def end_engine(server: HeldServer) -> None:
    """Let an engine begin that cannot load its model. The other processes wait for the front."""
    wait_until(lambda: children(server.process.pid, "corral.link.worker"))
    engine = children(server.process.pid, "corral.link.worker")
    server.release(ENGINE)
    assert psutil.wait_procs(engine, timeout=START_S)[1] == []


def n_accepted(server: CorralProcess) -> int:
    connections = psutil.Process(server.process.pid).net_connections("tcp")
    return sum(one.status == psutil.CONN_ESTABLISHED for one in connections)


def told(server: CorralProcess) -> tuple[int, dict, list]:
    answer = server.get("/health")
    return answer.status_code, answer.json(), [answer.headers.get(name) for name in _STABLE]


def test_health_is_told_from_the_beginning_and_all_else_as_soon_as_it_can_be(tiny, tmp_path):
    with HeldServer(tmp_path, "-m", tiny, "-c", 512, "--api-key", "secret") as server:
        first = told(server)
        assert first[:2] == (503, LOADING)
        with sent(server, ("GET", "/"), ("GET", "/ready"), ("POST", "/completion")) as asked:
            assert told(server) == first
            assert not any(answer.done() for answer in asked)
            server.release(FRONT)
            page, ready, refused = (answer.result() for answer in asked)
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert (ready.status_code, ready.json()) == (503, LOADING)
        assert refused.status_code == 401
        assert told(server) == first
        server.release(ENGINE)
        server.wait_for(r"ready on (\S+)")
        assert told(server)[0] == 200


def test_all_processes_begin_before_the_front_is_imported(tiny, tmp_path):
    with HeldServer(tmp_path, "-m", tiny, "-c", 512) as server:
        modules = [f"corral.link.{name}" for name in ("worker", "tokenizer_worker", "renderer_worker")]
        wait_until(lambda: all(children(server.process.pid, module) for module in modules))
        assert told(server)[0] == 503


def test_no_process_imports_what_a_plain_start_does_without(tiny, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(_RECORD)
    with CorralProcess("-m", tiny, "-c", 512, env={"PYTHONPATH": str(tmp_path)}) as server:
        pids = {"front": server.process.pid}
        for name in ("worker", "tokenizer_worker", "renderer_worker"):
            (process,) = children(server.process.pid, f"corral.link.{name}")
            pids[name] = process.pid
    imported = {name: (tmp_path / str(pid)).read_text().split() for name, pid in pids.items()}
    assert {name: UNUSED[name] & set(imported[name]) for name in UNUSED} == {name: set() for name in UNUSED}
    assert all("corral.link.frame" in each for each in imported.values()), "it is recorded"
    before = set(imported["front"][: imported["front"].index(AFTER_LISTENING)])
    assert not before & {*UNUSED["front"], "numpy", "pydantic", "anyio", "starlette.applications", "psutil"}
    assert "uvicorn" in before, "the first answer is one of the server itself"


def test_an_engine_that_is_there_first_has_to_wait(tiny, tmp_path):
    with HeldServer(tmp_path, "-m", tiny, "-c", 512) as server:
        server.release(ENGINE)
        server.wait_for(r": 100%|loading .*: \d+%")
        status, body, _ = told(server)
        assert (status, body["error"]["message"]) == (503, "Loading model")
        assert body["error"]["stage"] in ("loading", "warming up")
        assert "/" not in body["error"]["detail"]
        server.release(FRONT)
        server.wait_for(r"ready on (\S+)")
        assert server.complete(prompt="a", n_predict=1)["tokens_predicted"] == 1


def test_the_end_comes_also_before_there_is_anything(tiny, tmp_path):
    with HeldServer(tmp_path, "-m", tiny) as server, sent(server, ("GET", "/ready")) as asked:
        assert told(server)[0] == 503
        children = psutil.Process(server.process.pid).children()
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("stopping after running requests are done")
        server.release(FRONT)
        assert asked[0].result().status_code == 503
        assert server.process.wait(START_S) == 0
    assert psutil.wait_procs(children, timeout=START_S)[1] == []
    assert "Traceback" not in "".join(server.lines)


# What only the front finds: files that cannot be read end the start before.
WRONG: dict[str, Any] = {"--api-key-file": "alice=0:key", "--system-prompt-file": '{"prompt": 5}'}


@pytest.mark.parametrize("option", WRONG)
def test_a_wrong_option_ends_it_although_the_engine_is_loading(tiny, tmp_path, option):
    (tmp_path / "file").write_text(WRONG[option])
    with HeldServer(tmp_path, "-m", tiny, option, tmp_path / "file") as server:
        children = psutil.Process(server.process.pid).children()
        server.release(FRONT)
        assert server.process.wait(START_S) == 1
    assert psutil.wait_procs(children, timeout=START_S)[1] == []
    printed = "".join(server.lines)
    assert option in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize("option", WRONG)
def test_what_is_wrong_with_options_is_told_before_what_is_wrong_with_the_model(tmp_path, option):
    (tmp_path / "file").write_text(WRONG[option])
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    with HeldServer(tmp_path, "-m", broken, option, tmp_path / "file") as server:
        end_engine(server)
        server.release(FRONT)
        assert server.process.wait(START_S) == 1
    printed = "".join(server.lines)
    assert option in printed
    assert "broken.gguf'" not in printed
    assert "Traceback" not in printed


def test_a_model_that_cannot_be_loaded_is_told_when_there_is_a_front(tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    with HeldServer(tmp_path, "-m", broken) as server, sent(server, ("GET", "/ready")) as asked:
        end_engine(server)
        assert told(server)[:2] == (503, LOADING)
        server.release(FRONT)
        assert asked[0].result().json() == LOADING
        assert server.process.wait(START_S) == 1
    printed = "".join(server.lines)
    assert "broken.gguf': " in printed
    assert "Traceback" not in printed


def test_a_download_is_told_while_it_runs(half_url, tmp_path):
    cache = tmp_path / "cache"
    options = ("--model-url", half_url, "--api-key", "secret")
    with CorralProcess(*options, wait=False, env={"LLAMA_CACHE": str(cache)}) as server:
        server.url = server.wait_for(r"listening on ([^\s,]+)")
        server.wait_for("downloading m.gguf")
        while (error := server.get("/health").json()["error"])["progress"] < 0.5:
            pass
        assert (error["code"], error["message"], error["stage"]) == (503, "Loading model", "downloading")
        assert "1.0 MiB of 2.0 MiB" in error["detail"]
        assert "m.gguf" not in error["detail"]
        assert server.get("/").status_code == 200
        assert server.get("/ready").json()["error"]["stage"] == "downloading"
        assert server.stop() == 0
    assert "Traceback" not in "".join(server.lines)
    assert [path.stat().st_size for path in cache.glob("*.part")] == [1 << 20]


def test_a_download_that_fails_ends_the_server(tmp_path):
    url = "http://127.0.0.1:9/m.gguf"  # where nothing listens
    with CorralProcess("--model-url", url, wait=False, env={"LLAMA_CACHE": str(tmp_path)}) as server:
        assert server.process.wait(START_S) == 1
    printed = "".join(server.lines)
    assert "--model-url" in printed
    assert "Traceback" not in printed


def test_a_command_that_serves_nothing_waits_for_nothing(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(_SITE)
    command = [sys.executable, "-m", "corral", "--version"]
    env = {"PYTHONPATH": str(tmp_path)}
    assert subprocess.run(command, capture_output=True, timeout=START_S, env=env).returncode == 0
