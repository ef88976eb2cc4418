"""Claude Code reads a file and answers: `/v1/messages`."""

from __future__ import annotations

import json

import pytest

from tests.clients.client import check_talk, run_client, text_of
from tests.clients.force import Force, results

OFFLINE = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
}
# It ends a stream without text after five minutes, pings or not: a slow machine needs longer for a prompt.
PATIENT = {"API_TIMEOUT_MS": "3600000", "CLAUDE_STREAM_IDLE_TIMEOUT_MS": "3600000"}


@pytest.mark.parametrize(("tools", "n_tools"), [("Read,Edit,Write", 3), ("default", 20)])
def test_claude_code(program, proxy, tmp_path, tools, n_tools):
    claude = program("node_modules/.bin/claude")
    file = tmp_path / "heron.txt"
    file.write_text("The heron stands in the reeds.\n")
    force = Force("Read", {"file_path": str(file)})
    with proxy(f"claude_code_{n_tools}", force) as between:
        printed = run_client(
            [claude, "-p", "What is in it?", "--tools", tools, "--output-format", "stream-json", "--verbose"],
            tmp_path,
            ANTHROPIC_BASE_URL=between.url,
            ANTHROPIC_AUTH_TOKEN="none",
            ANTHROPIC_MODEL="local",
            ANTHROPIC_SMALL_FAST_MODEL="local",
            **OFFLINE,
            **PATIENT,
        )
        first, second = check_talk(between, "/v1/messages", force)
    assert first.body["stream"]
    assert len(first.body["tools"]) >= n_tools
    (result,) = results(second.path, second.body)
    assert "The heron stands in the reeds." in json.dumps(result["content"])
    last = json.loads(printed.splitlines()[-1])
    assert (last["type"], last["is_error"], last["num_turns"]) == ("result", False, 2)
    assert last["result"].strip() == text_of(second).strip()
    assert last["permission_denials"] == []
