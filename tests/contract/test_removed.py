"""What former versions had is refused, or ignored with a warning, with what to use instead."""

from __future__ import annotations

from typing import Any

import pytest

from corral.cli.main import main
from corral.core import removed
from tests.contract.inline import Server, post

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
OPTIONS = {
    "--fronts": "--shared-storage",
    "--monitor-history": "--metrics",
    "--receipt-key": "same model, seed and request",
}
COMMANDS = {"compare": "bench.quality", "replay": "same model, seed and request"}
CONTROL = "/v1/chat/completions/control"
PATHS = {
    ("GET", "/monitor/day"): "--ledger",
    ("POST", "/v1/receipts/replay"): "same model, seed and request",
}
COMPARED: dict[str, Any] = {"prompt_cache_options": {"mode": "auto", "comparison_response_id": "x"}}
COMPARISON = "prompt_cache_options.comparison_response_id"
IGNORED: list[tuple[str, str, dict[str, Any]]] = [
    ("diagnostics", "/v1/messages", {**CHAT, "diagnostics": {"previous_message_id": None}}),
    (COMPARISON, "/v1/chat/completions", {**CHAT, **COMPARED}),
    (COMPARISON, "/v1/responses", {"input": "hi", "max_output_tokens": 1, **COMPARED}),
]
REQUESTS: list[tuple[str, str, dict[str, Any], str]] = [
    ("receipt", "/completion", {"prompt": "a", "receipt": True}, "same model, seed and request"),
    ("receipt", "/v1/chat/completions", {**CHAT, "receipt": True}, "same model, seed and request"),
]


def test_every_row_of_the_table_is_tried():
    assert removed.OPTIONS.keys() == OPTIONS.keys()
    assert removed.COMMANDS.keys() == COMMANDS.keys()
    assert removed.PATHS.keys() == {path for _, path in PATHS}
    assert removed.ACTIONS.keys() == {"edit", "fork"}
    assert removed.FIELDS.keys() == {field for field, *_ in REQUESTS}
    assert removed.IGNORED_FIELDS.keys() == {field for field, *_ in IGNORED}


@pytest.mark.parametrize(("name", "instead"), OPTIONS.items())
def test_an_option_ends_the_start(capsys, monkeypatch, name, instead):
    assert main([name, "2"]) == 2
    assert f"{name}: removed in 0.13: " in (said := capsys.readouterr().err)
    assert instead in said
    monkeypatch.setenv(variable := "LLAMA_ARG_" + name[2:].upper().replace("-", "_"), "2")
    assert main([]) == 2
    assert f"{variable}: removed in 0.13: " in capsys.readouterr().err


@pytest.mark.parametrize(("name", "instead"), COMMANDS.items())
def test_a_command(capsys, name, instead):
    assert main([name, "--help"]) == 2
    assert f"{name}: removed in 0.13: " in (said := capsys.readouterr().err)
    assert instead in said


@pytest.mark.parametrize(("field", "path", "body", "instead"), REQUESTS)
async def test_a_field(field, path, body, instead):
    response = await Server(chat_template="chatml").http.post(path, json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["message"].startswith(f"Field '{field}': removed in 0.13: ")
    assert instead in error["message"]
    assert error["param"] == field


@pytest.mark.parametrize(("field", "path", "body"), IGNORED)
async def test_a_field_of_other_servers_is_a_warning(field, path, body):
    answer = await post(Server(chat_template="chatml"), path, json=body)
    (warning,) = [each for each in answer["warnings"] if field in each]
    assert warning.startswith(f"Field '{field}' was ignored: removed in 0.13: ")
    assert "cache_report" in warning


@pytest.mark.parametrize("action", ["edit", "fork"])
async def test_an_action_on_a_running_answer(action):
    body = {"id": "x", "action": action, "keep": 0}
    error = await post(Server(), CONTROL, 400, json=body)
    assert error["message"].startswith(f"Field 'action': '{action}' was removed in 0.13: ")
    assert "the assistant's text so far" in error["message"]
    assert error["param"] == "action"


@pytest.mark.parametrize(("route", "instead"), PATHS.items())
async def test_an_endpoint(route, instead):
    response = await Server().http.request(*route)
    assert response.status_code == 404
    assert response.json()["error"]["message"].startswith("removed in 0.13: ")
    assert instead in response.json()["error"]["message"]
