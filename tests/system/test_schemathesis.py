"""The real command against its own description: valid and invalid requests for every operation of
`/openapi.json`, made up by schemathesis. Every answer has to be one that is described.

With CORRAL_SOAK in the environment there are many more of them, and others every time.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.system.process import CorralProcess

IS_SOAK = bool(os.environ.get("CORRAL_SOAK"))
N_EXAMPLES = 200 if IS_SOAK else 8  # of each operation, beside those that follow from its schema
SEED = int.from_bytes(os.urandom(4), "big") if IS_SOAK else 1
SCORES = "rank|classify"
ENDLESS = "monitor/events"  # an answer that nobody can wait for
# Second names of a handler, or of nearly the same fields: the schema's own cases are tried with the first.
OTHER_NAMES = [
    "/completions",
    "/v1/completions",
    "/infill",
    "/chat/completions",
    "/chat/completions/input_tokens",
    "/v1/chat/completions/input_tokens",
    "/v1/messages/count_tokens",
    "/responses",
    "/responses/input_tokens",
    "/v1/responses/input_tokens",
    "/apply-template",
    "/embeddings",
    "/audio/transcriptions",
    "/reranking",
    "/v1/rerank",
    "/v1/reranking",
    "/v1/classify",
]
# Which of several bodies is right depends on the action, which OpenAPI cannot say; a chat without messages
# only loads the model, and reads little else.
ACTIONS = ["/slots/{id_slot}", "/sessions/{id_session}", "/api/chat"]


def config() -> str:
    """What answers may be, in schemathesis's own terms."""
    other_names = (
        "" if IS_SOAK else f"[[operations]]\ninclude-path = {OTHER_NAMES}\nphases.coverage.enabled = false\n"
    )
    return f"""
seed = {SEED}
request-timeout = 120.0
continue-on-failure = true

[generation]
max-examples = {N_EXAMPLES}
deterministic = {json.dumps(not IS_SOAK)}
no-shrink = {json.dumps(not IS_SOAK)}

[phases]
stateful.enabled = false

[checks]
# Grammars, templates and names have languages of their own: what the schema allows may still be wrong.
positive_data_acceptance.enabled = false
# A server or model that cannot do it says so, and `max_queue_ms` may be too short.
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "501", "503"]

[[operations]]
include-path = {ACTIONS}
checks.negative_data_rejection.enabled = false

{other_names}"""


def attack(server: CorralProcess, folder: Path, *options: str) -> dict:
    """A run of schemathesis: how many cases there were, of how many operations."""
    (folder / "schemathesis.toml").write_text(config())
    command = [
        sys.executable,
        "-m",
        "schemathesis.cli",
        "--config-file",
        str(folder / "schemathesis.toml"),
        "run",
    ]
    command += [f"{server.url}/openapi.json", "--no-color", "--warnings", "off", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=quiet_environment())
    assert done.returncode == 0, f"seed {SEED}\n{done.stdout[-20000:]}\n{done.stderr[-5000:]}"
    tested = re.search(r"Tested: (\d+)", done.stdout)
    cases = re.search(r"(\d+) generated", done.stdout)
    assert tested is not None, done.stdout
    assert cases is not None, done.stdout
    return {"operations": int(tested[1]), "cases": int(cases[1])}


def quiet_environment() -> dict[str, str]:
    """Nothing of this test's own settings, and nobody's proxy."""
    return {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}


def check_server(server: CorralProcess) -> None:
    """No engine was lost (`keep_alive` may have unloaded it), and nothing happened that was not foreseen."""
    log = "".join(server.lines)
    assert not re.search(r"; restart \d", log), log[-5000:]
    assert "Traceback" not in log, log[log.find("Traceback") :][:5000]
    assert "unexpected error" not in log


def test_every_answer_is_described(models, tmp_path):
    for folder in ("saves", "adapters", "chats"):
        (tmp_path / folder).mkdir()
    options = ["--slots", "--metrics", "--props", "--slot-save-path", tmp_path / "saves"]
    options += ["--chats", tmp_path / "chats"]
    options += ["--lora-dir", tmp_path / "adapters", "-c", 512, "-np", 2]
    options += ["--max-predict", 4, "--no-context-shift"]
    with CorralProcess("-m", models / "llama-fim.gguf", *options) as server:
        assert {*OTHER_NAMES, *ACTIONS} <= server.get("/openapi.json").json()["paths"].keys()
        plain = {"prompt": "hello", "n_predict": 8, "seed": 1, "temperature": 0}
        before = server.complete(**plain)["content"]
        found = attack(server, tmp_path, "--exclude-path-regex", f"{SCORES}|{ENDLESS}")
        check_server(server)
        assert server.complete(**plain, system_prompt="")["content"] == before
    assert found["operations"] >= 32
    assert found["cases"] >= 2000


def test_every_score_is_described(encoders, tmp_path):
    with CorralProcess("-m", encoders / "bert-classify.gguf", "--reranking") as server:
        found = attack(server, tmp_path, "--include-path-regex", SCORES)
        check_server(server)
        answer = server.post("/rerank", query="a", documents=["b", "c"])
        assert answer.status_code == 200, answer.text
    assert found["operations"] == 6
