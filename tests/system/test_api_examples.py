"""Every command of the API's page and of the guides, run as printed on servers that can answer."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.document import ROOT, marked_blocks, run_block
from tests.system.downloads import serve_downloads
from tests.system.process import CorralProcess, wait_until
from tests.tools import mcp_server
from tools.api_reference import SOURCE, Endpoint, endpoints, sections

EXAMPLES = [
    pytest.param(endpoint, section.setup[1] + commands, id=f"{endpoint.name} {caption}".strip())
    for section in sections()
    for endpoint in section.endpoints
    for caption, commands in endpoint.examples
]
GUIDES = [
    pytest.param(kind, text, id=f"{path.name}: {text[:50]}")
    for path in sorted((ROOT / "docs").rglob("*.md"))
    for kind, text in marked_blocks(path.read_text())
]
ONE_THREAD = ("-t", 1)


@pytest.fixture(scope="module")
def generates(models, modifiers, vision, tmp_path_factory):
    """A tiny model with everything that can be had at once: marks of infilling, adapters, eyes, files."""
    path = tmp_path_factory.mktemp("server")
    adapters, saves, chats, batches = (path / name for name in ("adapters", "saves", "chats", "batches"))
    for folder in (adapters, saves, chats, batches):
        folder.mkdir()
    shutil.copy(modifiers / "lora-a.gguf", path / "style.gguf")
    shutil.copy(modifiers / "lora-b.gguf", adapters / "law.gguf")
    files = (
        "-m",
        models / "llama-fim.gguf",
        "--mmproj",
        vision / "mmproj-llava.gguf",
        "--lora",
        path / "style.gguf",
    )
    tools = {"mcpServers": {"small": {"command": sys.executable, "args": [mcp_server.__file__]}}}
    (path / "mcp.json").write_text(json.dumps(tools))
    server_tools = ("--mcp-servers-config", path / "mcp.json")
    places = ("--lora-dir", adapters, "--slot-save-path", saves, "--chats", chats, "--batches", batches)
    with CorralProcess(
        *files,
        *places,
        *server_tools,
        "--slots",
        "--props",
        "--metrics",
        "-c",
        2048,
        "-np",
        2,
        *ONE_THREAD,
    ) as server:
        yield server


@pytest.fixture(scope="module")
def scores(encoders):
    with CorralProcess("-m", encoders / "bert-classify.gguf", "--reranking", *ONE_THREAD) as server:
        yield server


@pytest.fixture(scope="module")
def hears(vision):
    files = ("-m", vision / "llama-bpe.gguf", "--mmproj", vision / "mmproj-ultravox.gguf")
    with CorralProcess(*files, "-c", 2048, *ONE_THREAD) as server:
        yield server


@pytest.fixture(scope="module")
def many(models):
    with CorralProcess("--models-dir", models, "-c", 512, *ONE_THREAD) as server:
        yield server


@pytest.fixture(scope="module")
def several(models):
    with CorralProcess("-m", models / "llama-bpe.gguf", "--engines", 2, "-c", 512, *ONE_THREAD) as server:
        yield server


@pytest.fixture(scope="module")
def downloads(models, tmp_path_factory):
    with serve_downloads(models / "llama-bpe.gguf", tmp_path_factory.mktemp("cache")) as server:
        assert server.post("/models", model="user/old:Q8_0").status_code == 200
        wait_until(lambda: server.get("/v1/models/user/old:Q8_0").status_code == 200)
        yield server


@pytest.mark.parametrize(("endpoint", "commands"), EXAMPLES)
def test_example(request, endpoint: Endpoint, commands: str):
    server = request.getfixturevalue(endpoint.facts.get("server", "generates"))
    if "slot" in commands:
        server.complete(prompt="Once upon a time there was a small model", n_predict=4, id_slot=0)
    printed = run_block("curl", commands, server.url)
    is_text = endpoint.facts.get("kind") == "text"
    there = re.findall(r"[\w:]+", printed) if is_text else keys_of(parse(printed)[-1])
    assert set(named_fields(endpoint)) <= set(there), printed


@pytest.mark.parametrize(("kind", "text"), GUIDES)
def test_guide(corral, kind: str, text: str):
    run_block(kind, text, corral.url)


def test_the_error_on_the_page_is_what_comes(generates):
    (shown,) = re.findall(r"```json\n(.*?)```", SOURCE.read_text(), re.S)
    assert generates.post("/completion", prompt="Once", n="two").json() == json.loads(shown)


def test_every_endpoint_has_an_example_that_calls_it():
    for endpoint in endpoints():
        path = endpoint.name.partition(" ")[2].replace("?", r"\?")
        pattern = re.sub(r"\{\w+\}", r"[^/?]+", path)
        assert endpoint.examples, endpoint.name
        for _, commands in endpoint.examples:
            assert re.search(rf'curl .*http://127\.0\.0\.1:8080{pattern}["?& \n]', commands), endpoint.name


def parse(printed: str) -> list[Any]:
    """The values in it, as jq reads them."""
    result = subprocess.run(["jq", "-s", "."], input=printed, capture_output=True, text=True)
    assert result.returncode == 0, printed
    return json.loads(result.stdout)


def named_fields(endpoint: Endpoint) -> list[str]:
    return re.findall(r"`([a-z_:]+)`", endpoint.facts["answer"])


def keys_of(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from keys_of(item)
