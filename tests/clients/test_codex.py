"""Codex asks for its goal and answers: `/v1/responses`."""

from __future__ import annotations

import json

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


def test_codex(program, proxy, tmp_path):
    codex = program("node_modules/.bin/codex")
    force = Force("get_goal", {})
    with proxy("codex", force) as between:
        (tmp_path / ".codex").mkdir()
        (tmp_path / ".codex" / "config.toml").write_text(CONFIG.format(url=between.url))
        printed = run_client(
            [codex, "exec", "--json", "--skip-git-repo-check", "--sandbox", "read-only", "What is the goal?"],
            tmp_path,
            CORRAL_API_KEY="none",
        )
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
