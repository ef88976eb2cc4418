"""Programs of `examples/`, and the one in llama-server's manual, against the real server."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.system.process import START_S, CorralProcess

EXAMPLES = Path(__file__).parents[2] / "examples"
COMMANDS: dict[str, Any] = {"mjs": ["node", EXAMPLES / "chat.mjs"], "sh": [EXAMPLES / "chat.sh"]}
KEY = "sk-ex\u00e4mple"
SYSTEM = 'You are "terse".'
# Letter for letter.
MANUAL = """const prompt = `Building a website can be done in 10 simple steps:`;

async function Test() {
    let response = await fetch("http://127.0.0.1:8080/completion", {
        method: 'POST',
        body: JSON.stringify({
            prompt,
            n_predict: 512,
        })
    })
    console.log((await response.json()).content)
}

Test()
"""


@pytest.fixture(scope="module")
def guarded(tiny):
    """With a grammar that makes answers known."""
    options = (
        "-m",
        tiny,
        "-c",
        2048,
        "--api-key",
        KEY,
        "--slots",
        "--grammar",
        'root ::= "Grün, \\"ja\\"!\\n🦙"',
    )
    with CorralProcess(*options) as server:
        yield server


def chat(name: str, lines: list[str], *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMANDS[name], *options],
        input="".join(line + "\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=START_S,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8", **env},
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_a_chat_remembers_what_was_said(guarded, name):
    options = ("--url", guarded.url, "--key", KEY, "--system", SYSTEM, "--max-tokens", "40")
    done = chat(name, ['Say "yes" \\n', "  ", "Again?"], *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.replace("> ", "").count('Grün, "ja"!\n🦙\n') == 2
    (slot,) = slots_of(guarded)
    said = slot["prompt"]
    places = [said.find(text) for text in (SYSTEM, 'Say "yes" \\n', 'Grün, "ja"!\n🦙', "Again?")]
    assert places == sorted(places)
    assert -1 not in places


@pytest.mark.parametrize("name", COMMANDS)
def test_where_the_server_is_and_its_key_may_be_in_the_environment(guarded, name):
    done = chat(name, ["Hello"], CORRAL_URL=guarded.url, LLAMA_API_KEY=KEY)
    assert 'Grün, "ja"!\n🦙' in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_errors_are_told_and_the_chat_goes_on(guarded, name):
    done = chat(name, ["Hello", "Hello"], "--url", guarded.url, "--key", "wrong")
    assert done.stderr.count("Invalid API Key") == 2
    with socket.create_server(("127.0.0.1", 0)) as closed_soon:
        nobody = f"http://127.0.0.1:{closed_soon.getsockname()[1]}"
    done = chat(name, ["Hello", "Hello"], "--url", nobody)
    assert done.stderr.count("127.0.0.1") == 2
    assert done.returncode == 0


def test_the_program_of_the_manual(tiny, tmp_path):
    with CorralProcess("-m", tiny, "-c", 2048) as server:
        (tmp_path / "index.js").write_text(MANUAL.replace("8080", server.url.rpartition(":")[2]))
        done = subprocess.run(
            ["node", "index.js"], cwd=tmp_path, capture_output=True, text=True, timeout=START_S
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout) > 20
    assert "undefined" not in done.stdout


def slots_of(server: CorralProcess) -> list[dict]:
    response = httpx.get(server.url + "/slots", headers=[(b"x-api-key", KEY.encode())], timeout=START_S)
    return json.loads(response.content)
