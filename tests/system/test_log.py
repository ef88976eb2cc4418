"""The log of the real command: on stderr and in its file, from both processes."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys

import httpx
import psutil
import pytest

from tests.system.process import START_S, CorralProcess, wait_until

N_UNREAD = 1500  # lines, more than a pipe holds


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def start_quietly(*options: object) -> CorralProcess:
    """A server that does not say when it is ready."""
    port = free_port()
    server = CorralProcess("-c", 512, *options, "--port", port, wait=False)
    server.url = f"http://127.0.0.1:{port}"

    def is_ready() -> bool:
        assert server.process.poll() is None, server.lines
        try:
            return httpx.get(server.url + "/health", timeout=START_S).status_code == 200
        except httpx.TransportError:
            return False

    wait_until(is_ready)
    return server


def test_a_file_gets_the_same_as_stderr(tiny, tmp_path):
    path = tmp_path / "corral.log"
    path.write_text("old\n")
    with CorralProcess("-m", tiny, "-c", 512, "--log-file", path) as server:
        server.complete(prompt="attack at dawn", n_predict=2)
        server.get("/none?attack=1")
        server.wait_for(r"GET /none 404")
    text = path.read_text()
    assert "old" not in text
    for pattern in (
        r"listening on http://127\.0\.0\.1:\d+, loading llama-bpe\.gguf$",
        r"ready on http://127\.0\.0\.1:\d+$",
        r"POST /completion 200 in [\d.]+ ms, \d+ bytes in, \d+ out, 127\.0\.0\.1, \w{32}; .* tokens/s\)$",
        r"GET /none 404 in ",
        r"stopping after running requests are done; .*Ctrl-C",
    ):
        assert re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d " + pattern, text, re.MULTILINE), pattern
    assert "attack" not in text + "".join(server.lines)


@pytest.fixture(scope="module")
def verbose(tiny, tmp_path_factory):
    """Everything that a verbose server logs in JSON until its end, on stderr and into its file."""
    path = tmp_path_factory.mktemp("log") / "log.txt"
    server = CorralProcess(
        "-m", tiny, "-c", 512, "-v", "--log-format", "json", "--log-file", path, wait=False
    )
    url = json.loads(server.wait_for(r".*ready on.*"))["address"]
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as client:
        client.sendall(b"no HTTP at all\r\n\r\n")
        client.recv(1000)
    server.engine.send_signal(signal.SIGABRT)
    server.wait_for("engine lost")
    wait_until(lambda: httpx.get(url + "/health", timeout=START_S).status_code == 200)
    server.stop()
    return list(map(json.loads, server.lines)), list(map(json.loads, path.read_text().splitlines()))


def test_every_line_is_json_here_and_there(verbose):
    stderr, file = verbose
    # Two processes have something to say: which line is first may differ.
    assert sorted(map(str, stderr)) == sorted(map(str, file))
    assert all({"ts", "level", "msg"} <= set(line) for line in stderr)


def test_verbose_shows_what_libllama_says(verbose):
    engine = [line for line in verbose[1] if line.get("logger") == "corral.engine"]
    assert any("llama_model_loader" in line["msg"] for line in engine)
    assert {"info", "debug"} <= {line["level"] for line in engine}
    assert sum("llama_model_loader: loaded meta data" in line["msg"] for line in engine) == 2


def test_what_is_no_http_is_logged_too(verbose):
    (line,) = [line for line in verbose[1] if line["msg"].startswith("disconnected 127.0.0.1 with 400")]
    assert line["level"] == "info"


def test_a_lost_engine_is_a_warning(verbose):
    (line,) = [line for line in verbose[1] if line["msg"].startswith("engine lost")]
    assert line["level"] == "warning"
    assert line["reason"]


def test_without_verbose_libllama_says_nothing(tiny, tmp_path):
    """Nor is there a file without a log."""
    with CorralProcess("-m", tiny, "-c", 512, "--log-disable", "--log-file", tmp_path / "log") as server:
        pass
    assert "llama_model" not in "".join(server.lines)
    assert not list(tmp_path.iterdir())


def test_a_server_that_says_nothing(tiny, tmp_path):
    path = tmp_path / "a.log"
    with start_quietly("-m", tiny, "--log-file", path, "--verbosity", 0) as server:
        server.get("/none")
        server.engine.kill()
        wait_until(lambda: server.get("/health").status_code == 200)
    assert server.lines == []
    assert path.read_text() == ""


def test_only_warnings(tiny):
    with start_quietly("-m", tiny, "--verbosity", 2) as server:
        server.get("/none")
        server.engine.kill()
        wait_until(lambda: "engine lost" in "".join(server.lines))
        wait_until(lambda: server.get("/health").status_code == 200)
    assert all("warning: engine lost" in line for line in server.lines)
    assert len(server.lines) == 1


def test_why_it_ends_is_said_in_any_case(tmp_path):
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF")
    command = [sys.executable, "-m", "corral", "-m", str(path), "--port", "0", "--verbosity", "0"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=START_S)
    assert result.returncode == 1
    assert result.stderr.startswith("corral: ")
    assert str(path) in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_keys_are_in_no_line(tiny, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-from-file\n")
    options = ("-m", tiny, "-c", 512, "-v", "--api-key", "sk-from-option", "--api-key-file", keys)
    with CorralProcess(*options) as server:
        for key, status in (("sk-from-option", 200), ("sk-from-file", 200), ("sk-wrong", 401)):
            for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}):
                body = {"content": "hello"}
                url = f"{server.url}/tokenize?key={key}"
                answer = httpx.post(url, json=body, headers=headers, timeout=START_S)
                assert answer.status_code == status
        assert server.get("/health").status_code == 200
        server.wait_for("GET /health 200")
    assert "sk-" not in "".join(server.lines)


def test_the_command_that_others_can_see_has_no_key(tiny):
    with CorralProcess("-m", tiny, "-c", 256, "--api-key", "sk-very-secret") as server:
        front = psutil.Process(server.process.pid)
        for process in (front, *front.children()):
            assert "sk-very-secret" not in " ".join(process.cmdline())
            assert "corral" in " ".join(process.cmdline())


@pytest.mark.slow
@pytest.mark.parametrize("reads_later", [True, False])
def test_a_log_that_nobody_reads_stops_nobody(tiny, reads_later):
    port = free_port()
    command = [sys.executable, "-m", "corral", "-m", tiny, "-c", "512", "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            while "ready on" not in process.stderr.readline():
                assert process.poll() is None
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=START_S) as http:
                for i in range(N_UNREAD):
                    assert http.get(f"/none/{i:04}").status_code == 404
            process.send_signal(signal.SIGTERM)
            if reads_later:
                told = re.findall(r"GET /none/(\d+) 404", process.stderr.read())
                assert told == [f"{i:04}" for i in range(N_UNREAD)]
            assert process.wait(START_S) == 0
        finally:
            process.kill()
