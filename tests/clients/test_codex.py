"""Codex asks for its goal and answers: `/v1/responses`; with `--oss` it first asks what the server has."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.clients.client import check_talk, run_client, text_of
from tests.clients.force import Force, results

CONFIG = """
model = "local"
model_provider = "corral"
model_context_window = 65536
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.corral]
name = "Corral"
base_url = "{url}/v1"
env_key = "CORRAL_API_KEY"
wire_api = "responses"
stream_idle_timeout_ms = 1800000
"""
OFFLINE = """
check_for_update_on_startup = false

[analytics]
enabled = false
"""
ASKED_FIRST = {"ollama": "/api/version", "lmstudio": "/v1/models"}


def test_codex(program, proxy, tmp_path):
    codex = program("node_modules/.bin/codex")
    force = Force("get_goal", {})
    with proxy("codex", force) as between:
        printed = run_codex(codex, tmp_path, CONFIG.format(url=between.url), CORRAL_API_KEY="none")
        check_codex(printed, between, force)


@pytest.mark.parametrize("provider", ASKED_FIRST)
def test_codex_with_a_local_provider(program, proxy, corral, tmp_path, provider):
    codex = program("node_modules/.bin/codex")
    force = Force("get_goal", {})
    (model,) = httpx.get(f"{corral.url}/v1/models").json()["data"]
    options = ("--oss", "--local-provider", provider, "-m", model["id"])
    with proxy(f"codex_{provider}", force) as between:
        printed = run_codex(codex, tmp_path, OFFLINE, *options, CODEX_OSS_BASE_URL=f"{between.url}/v1")
        check_codex(printed, between, force)
    assert ASKED_FIRST[provider] in {each.path for each in between.exchanges}


def run_codex(codex, home, config, *options, **env):
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text(config)
    command = [codex, "exec", *options, "--json", "--skip-git-repo-check", "--sandbox", "read-only"]
    return run_client([*command, "What is the goal?"], home, **env)


def check_codex(printed, between, force):
    first, second = check_talk(between, "/v1/responses", force)
    assert first.body["stream"]
    assert first.body["prompt_cache_key"] == second.body["prompt_cache_key"]
    (result,) = results(second.path, second.body)
    assert "goal" in json.dumps(result["output"])
    events = [json.loads(line) for line in printed.splitlines()]
    said = [event["item"]["text"] for event in events if event.get("item", {}).get("type") == "agent_message"]
    assert [text.strip() for text in said] == [text_of(second).strip()]
    assert events[-1]["type"] == "turn.completed"
    assert events[-1]["usage"]["cached_input_tokens"] > 0
