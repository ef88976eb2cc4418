"""Streams with `X-Conversation-Id` whose model is still loading."""

from __future__ import annotations

import concurrent.futures
import json
import socket
from urllib.parse import urlsplit

import httpx
import pytest

from tests.system.process import START_S, CorralProcess, wait_until
from tests.tools.tiny_models import llama_bpe

BODY = {"prompt": "Hello", "n_predict": 8, "seed": 1, "stream": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models")
    llama_bpe(directory)
    with CorralProcess("--models-dir", directory, "-c", 512, "--engine-timeout", 300) as server:
        yield server


def ask(server: CorralProcess, id: str) -> httpx.Response:
    headers = {"X-Conversation-Id": id}
    return httpx.post(f"{server.url}/completion", json=BODY, headers=headers, timeout=START_S)


def follow(server: CorralProcess, id: str) -> httpx.Response:
    return server.get(f"/v1/stream?conv_id={id}")


def send_request(server: CorralProcess, id: str) -> socket.socket:
    address, body = urlsplit(server.url), json.dumps(BODY)
    client = socket.create_connection((str(address.hostname), int(address.port or 0)))
    head = f"POST /completion HTTP/1.1\r\nhost: {address.netloc}\r\nx-conversation-id: {id}\r\n"
    client.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
    return client


def test_they_continue_without_their_client_and_can_be_stopped(server):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(ask, server, "stopped")
        wait_until(lambda: server.engines)
        (engine,) = server.engines
        engine.suspend()
        with send_request(server, "kept"):
            wait_until(lambda: follow(server, "kept").status_code == 503)
        assert httpx.delete(f"{server.url}/v1/stream?conv_id=stopped").status_code == 204
        assert stopped.result().status_code == 400
        engine.resume()
    wait_until(lambda: follow(server, "kept").status_code == 200)
    assert follow(server, "kept").text.count("data: ") == ask(server, "again").text.count("data: ")
    assert follow(server, "stopped").status_code == 404
