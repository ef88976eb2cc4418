"""Required calls whose rules are checked, in formats that write arguments between tags, on a real engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from jsonschema import Draft202012Validator

from tests.system.process import CorralProcess

TEMPLATES = Path(__file__).parents[1] / "tools" / "templates"
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "letters": {
            "type": "array",
            "items": {"type": "string", "pattern": "^[ab]{1,2}$"},
            "minItems": 3,
            "maxItems": 3,
            "uniqueItems": True,
        },
        "name": {"type": "string", "pattern": "^(?!a)[abc]{1,4}$"},
    },
    "required": ["letters", "name"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "spell", "parameters": PARAMETERS}}
N_CALLS = 8


@pytest.mark.parametrize("template", ["qwen3-coder", "glm-4.6", "lfm2"])
def test_calls_follow_their_schema(tiny, template):
    path = TEMPLATES / f"{template}.jinja"
    with CorralProcess("-m", tiny, "-c", 2048, "-t", 1, "--chat-template-file", path) as server:
        answers = [call(server, seed) for seed in range(N_CALLS)]
    called = [
        choice["message"]["tool_calls"] for choice, _ in answers if choice["finish_reason"] == "tool_calls"
    ]
    assert len(called) > N_CALLS // 2
    for (each,) in called:
        arguments = json.loads(each["function"]["arguments"])
        Draft202012Validator(PARAMETERS).validate(arguments)
        assert jsonschema_rs.is_valid(PARAMETERS, arguments)
    assert sum(n for _, n in answers) > 0


def call(server: CorralProcess, seed: int) -> tuple[dict[str, Any], int]:
    """The answer, and how much of it was drawn again."""
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "x"}],
        "tools": [TOOL],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 1.5,
        "max_tokens": 150,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    answer = server.post("/v1/chat/completions", seed=seed, **body).json()
    return answer["choices"][0], answer["timings"].get("redrawn_n", 0)
