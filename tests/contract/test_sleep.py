"""What begins to load an engine that sleeps, and what only reads."""

from __future__ import annotations

from typing import Any

import pytest

from corral.link.engine_state import EngineState
from tests.contract.inline import Server, post

HELLO = [{"role": "user", "content": "hello"}]
COUNTED: dict[str, dict[str, Any]] = {
    "/tokenize": {"content": "hello"},
    "/detokenize": {"tokens": [1]},
    "/apply-template": {"messages": HELLO},
    "/v1/chat/completions/input_tokens": {"messages": HELLO},
    "/v1/messages/count_tokens": {"model": "m", "messages": HELLO},
    "/v1/responses/input_tokens": {"model": "m", "input": "hello"},
}


@pytest.mark.parametrize("path", COUNTED)
async def test_who_counts_tokens_wakes_the_engine_without_waiting(path):
    server = Server()
    server.engine.state = EngineState.SLEEPING
    await post(server, path, json=COUNTED[path])
    assert server.engine.state is EngineState.WAKING


@pytest.mark.parametrize("path", ["/tokenize", "/apply-template"])
async def test_an_invalid_request_wakes_nothing(path):
    server = Server()
    server.engine.state = EngineState.SLEEPING
    await post(server, path, 400, json={"content": 5, "messages": 5})
    assert server.engine.state is EngineState.SLEEPING
