"""Tools of MCP servers behind `/tools`: real processes and a real HTTP server, for each key its own."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from pathlib import Path

import httpx
import psutil
import pytest

from tests.system.process import START_S, CorralProcess, wait_until
from tests.tools import mcp_server
from tests.tools.mcp_server import McpHttpServer

SCRIPT = str(Path(mcp_server.__file__))
ALICE, BOB = ({"Authorization": f"Bearer {key}"} for key in ("a-secret", "b-secret"))


@pytest.fixture(scope="module")
def http_server():
    with McpHttpServer() as server:
        yield server


@pytest.fixture(scope="module")
def corral(models, http_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mcp")
    process = {"command": sys.executable, "args": [SCRIPT]}
    servers = {
        "small": {**process, "env": {"GREETING": "hi"}, "timeout_ms": 30_000},
        "hasty": {**process, "timeout_ms": 5000},
        "hers": {**process, "keys": ["alice"]},
        "web": {"url": http_server.url, "headers": {"authorization": "Bearer of-the-operator"}},
        "missing": {"command": "/no/such/program"},
        "off": {"command": "false", "disabled": True},
    }
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    (folder / "keys").write_text("alice:a-secret\nbob:b-secret\n")
    options = ("--mcp-servers-config", folder / "mcp.json", "--api-key-file", folder / "keys")
    env = {"HF_TOKEN": "a-token"}
    with CorralProcess("-m", models / "llama-bpe.gguf", "-c", 256, *options, env=env) as server:
        yield server


def call(
    server: CorralProcess, tool: str, headers: dict[str, str] = ALICE, **params: object
) -> httpx.Response:
    body = {"tool": tool, "params": params}
    return httpx.post(server.url + "/tools", json=body, headers=headers, timeout=120)


def text(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    (part,) = response.json()["content"]
    return part["text"]


def error(response: httpx.Response) -> str:
    """The reason of a call that failed, as llama-server gives it."""
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["isError"] is True
    assert "plain_text_response" not in answer
    return answer["error"]


def listed(server: CorralProcess, headers: dict[str, str]) -> dict[str, dict]:
    tools = httpx.get(server.url + "/tools", headers=headers, timeout=120).json()
    return {tool["tool"]: tool for tool in tools}


def test_the_list_is_llama_servers(corral):
    tools = listed(corral, ALICE)
    names = [tool["name"] for tool in mcp_server.TOOLS]
    assert sorted(tools) == sorted(f"{s}_{n}" for s in ("small", "hasty", "hers", "web") for n in names)
    echo = tools["small_echo"]
    assert echo["type"] == "mcp"
    assert echo["display_name"] == "small_echo"
    assert echo["definition"]["function"]["name"] == "small_echo"
    assert echo["definition"]["function"]["parameters"]["required"] == ["text"]
    assert [tools[f"small_{name}"]["permissions"]["write"] for name in ("echo", "env")] == [True, False]


def test_calls(corral):
    assert text(call(corral, "small_echo", text="Füchse")) == "Füchse"
    assert call(corral, "small_echo", text="x").json()["plain_text_response"] == "x"
    assert error(call(corral, "small_fail"))
    assert call(corral, "small_none").status_code == 404
    assert call(corral, "none_echo").status_code == 404
    streamed = {"tool": "small_echo", "params": {"text": ""}, "stream": True}
    assert httpx.post(corral.url + "/tools", json=streamed, headers=ALICE, timeout=START_S).status_code == 400


def test_calls_over_http(corral, http_server):
    assert text(call(corral, "web_echo", text="far away")) == "far away"
    sent = http_server.headers[-1]
    assert sent["authorization"] == "Bearer of-the-operator"
    assert sent["mcp-session-id"] == "s1"
    assert sent["mcp-protocol-version"]


def test_a_process_gets_no_secrets(corral):
    names = text(call(corral, "small_env")).split()
    assert "GREETING" in names
    assert "PATH" in names
    assert not [name for name in names if "TOKEN" in name or "KEY" in name or name.startswith("LLAMA")]


def test_keys_have_their_own(corral):
    assert text(call(corral, "small_pid", ALICE)) != text(call(corral, "small_pid", BOB))
    assert text(call(corral, "small_pid", ALICE)) == text(call(corral, "small_pid", ALICE))
    assert text(call(corral, "hers_echo", ALICE, text="x")) == "x"
    assert call(corral, "hers_echo", BOB, text="x").status_code == 404
    assert not [name for name in listed(corral, BOB) if name.startswith("hers")]
    assert call(corral, "small_echo", {}, text="x").status_code == 401
    assert corral.get("/tools").status_code == 401


def test_a_lost_process_is_started_again(corral):
    before = text(call(corral, "small_pid"))
    lost = call(corral, "small_crash")
    assert error(lost)
    assert text(call(corral, "small_pid")) != before


def test_limits(corral):
    late = call(corral, "hasty_slow", seconds=60)
    assert error(late)
    assert len(text(call(corral, "small_big", n=1_000_000))) < 300_000
    assert error(call(corral, "small_big", n=5_000_000))
    assert text(call(corral, "small_echo", text="again")) == "again"


def test_a_client_that_leaves_is_not_waited_for(corral):
    body = {"tool": "small_slow", "params": {"seconds": 1}}
    impatient = httpx.Timeout(START_S, read=0.2)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(corral.url + "/tools", json=body, headers=ALICE, timeout=impatient)
    assert text(call(corral, "small_echo", text="still here")) == "still here"


def test_without_the_option_nothing_runs(models):
    with CorralProcess("-m", models / "llama-bpe.gguf", "-c", 256) as server:
        assert server.get("/tools").status_code == 403
        assert server.post("/tools", tool="small_echo").json()["error"]["type"] == "feature_disabled"
        assert server.get("/cors-proxy?url=http://example.com").status_code == 403
        assert server.post("/cors-proxy?url=http://example.com").status_code == 403
        assert server.get("/props").json()["endpoint_tools"] is False


def test_processes_end_with_the_server(models, tmp_path):
    config = {"mcpServers": {"small": {"command": sys.executable, "args": [SCRIPT]}}}
    (tmp_path / "mcp.json").write_text(json.dumps(config))
    options = ("--mcp-servers-config", tmp_path / "mcp.json", "--timeout", 2)
    with CorralProcess("-m", models / "llama-bpe.gguf", "-c", 256, *options) as server:
        assert server.get("/props").json()["endpoint_tools"] is True
        process = psutil.Process(int(text(call(server, "small_pid", {}))))
        evil = call(server, "small_echo", {"Origin": "https://evil.test"}, text="x")
        assert evil.status_code == 403, "pages of other sites cannot call tools"
        slow = threading.Thread(target=call_and_lose, args=(server,))
        slow.start()
        assert server.stop() == 0
        slow.join()
    wait_until(lambda: not process.is_running())


def call_and_lose(server: CorralProcess) -> None:
    with contextlib.suppress(httpx.HTTPError):
        call(server, "small_slow", {}, seconds=60)


def test_a_wrong_file_is_told(models, tmp_path, refused):
    (tmp_path / "mcp.json").write_text('{"mcpServers": []}')
    status, said = refused("-m", models / "llama-bpe.gguf", "--mcp-servers-config", tmp_path / "mcp.json")
    assert status == 2
    assert "--mcp-servers-config" in said
