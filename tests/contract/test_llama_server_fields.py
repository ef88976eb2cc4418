"""Every request field of today's llama-server is known: effective, refused with the reason, or documented as
without effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corral.core.params import DRAFT_KINDS, GenerationParams
from corral.core.task import Task
from corral.schema.chat import ChatRequest
from corral.schema.completion import CompletionRequest
from corral.schema.parse import _names_of
from tests.contract.inline import Server, post
from tests.contract.scripted import ScriptedServer
from tests.unit.fake import EOG

CHAT = "/v1/chat/completions"
MODELS = {"/completion": CompletionRequest, "/v1/chat/completions": ChatRequest}
LINES = (Path(__file__).parents[1] / "tools/llama_server_fields.txt").read_text().splitlines()
FIELDS = {
    path: [f for line in LINES for p, *fs in [line.split()] if p == path for f in fs] for path in MODELS
}
HELLO = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize("path", MODELS)
def test_every_field_of_todays_llama_server_is_known(path):
    known = {name for names in _names_of(MODELS[path]).values() for name in names}
    assert set(FIELDS[path]) - known == set()


def lazy(*triggers: dict[str, Any]) -> dict[str, Any]:
    return {"grammar": "hello", "grammar_lazy": True, "grammar_triggers": triggers}


def last_params(server: Server) -> GenerationParams:
    task = server.engine.submitted[-1]
    assert isinstance(task, Task)
    return task.params


async def params_of(server: Server, path: str = "/completion", **fields: Any) -> GenerationParams:
    start = {"prompt": "a b c"} if path == "/completion" else {"messages": HELLO}
    await post(server, path, json={**start, "n_predict": 1, **fields})
    return last_params(server)


@pytest.mark.parametrize("path", MODELS)
async def test_triggers_reach_the_engine(path):
    server = ScriptedServer()
    fields = lazy({"type": 1, "value": "<"}, {"type": 0, "token": 7}, {"type": 0, "value": "</s>"})
    constraint = (await params_of(server, path, **fields)).constraint
    assert constraint is not None
    assert (constraint.trigger_words, constraint.trigger_tokens[0]) == (("<",), 7)
    assert constraint.trigger_tokens[1:] == (EOG,)
    eager = (await params_of(server, path, **{**fields, "grammar_lazy": False})).constraint
    assert eager is not None
    assert (eager.trigger_words, eager.trigger_tokens) == ((), ())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (lazy(), "grammar_triggers"),
        (lazy({"type": 2, "value": "a+"}), "grammar_triggers"),
        (lazy({"type": 1, "value": ""}), "grammar_triggers"),
        (lazy({"type": 0, "token": 10**6}), "grammar_triggers"),
        (lazy({"type": 0, "value": "no such token"}), "grammar_triggers"),
        (
            {**lazy({"type": 1, "value": "<"}), "grammar": "", "json_schema": {"uniqueItems": True}},
            "grammar_lazy",
        ),
        ({"speculative.type": "draft-mtp"}, "speculative.type"),
        ({"reasoning_budget_tokens": 3}, "reasoning_budget_tokens"),
        ({"reasoning_control": True}, "reasoning_control"),
        ({"echo": True}, "echo"),
    ],
    ids=str,
)
async def test_what_cannot_be_honoured_is_refused(fields, param):
    error = await post(Server(), "/completion", 400, json={"prompt": "a", **fields})
    assert error["param"] == param


async def test_drafts_can_be_switched_off():
    server = Server()
    assert (await params_of(server, **{"speculative.type": "none"})).speculative.n_max == 0
    for kind in DRAFT_KINDS[1:]:
        assert (await params_of(server, **{"speculative.type": kind})).speculative.n_max > 0


async def test_a_budget_without_a_template_has_its_own_tags():
    tags = {"reasoning_budget_start_tag": "[R]", "reasoning_budget_end_tags": ["[/R]", "[END]"]}
    fields: dict[str, Any] = {**tags, "reasoning_budget_tokens": 5, "reasoning_budget_message": "So."}
    budget = (await params_of(Server(), **fields)).reasoning_budget
    assert budget is not None
    assert (budget.n_tokens, budget.start, budget.end, budget.other_ends) == (5, "[R]", "[/R]", ("[END]",))
    assert not budget.is_open
    assert list(budget.end_tokens) == Server().backend.vocab.tokenize("So.[/R]", False, True)
    opened = (await params_of(Server(), **fields, generation_prompt="assistant: [R]\n")).reasoning_budget
    assert opened is not None
    assert opened.is_open


@pytest.mark.parametrize("end", ["[/R]", "[END]"])
async def test_any_end_tag_ends_reasoning(end):
    server = ScriptedServer()
    server.say(f"[R]ab{end}" + "x" * 40)
    tags = {"reasoning_budget_start_tag": "[R]", "reasoning_budget_end_tags": ["[/R]", "[END]"]}
    answer = await server.complete(prompt="a", **tags, reasoning_budget_tokens=20)
    assert answer["content"] == f"[R]ab{end}" + "x" * 40


@pytest.mark.parametrize("name", ["reasoning_budget_tokens", "thinking_budget_tokens"])
async def test_a_message_precedes_the_end_of_reasoning(name):
    server = ScriptedServer(reasoning_budget_message=" Enough!")
    server.say("<think>" + "x" * 100 + "</think>yes")
    own = {"messages": HELLO, "n_predict": 40, name: 4}
    message = (await post(server, CHAT, json=own))["choices"][0]["message"]
    assert message["reasoning_content"] == "xxxx Enough!"
    server.say("<think>" + "x" * 100 + "</think>yes")
    message = (await post(server, CHAT, json={**own, "reasoning_budget_message": " So."}))["choices"][0][
        "message"
    ]
    assert message["reasoning_content"] == "xxxx So."


async def test_adaptive_p_has_to_be_named():
    server = Server()
    answer = await server.complete(prompt="a", n_predict=1, adaptive_target=0.5)
    assert any("adaptive_p" in warning for warning in answer["warnings"])
    named = await server.complete(prompt="a", n_predict=1, adaptive_target=0.5, samplers=["adaptive_p"])
    assert "warnings" not in named
    assert named["generation_settings"]["adaptive_target"] == 0.5


async def test_preserved_tokens_are_shown():
    assert (await params_of(Server(), preserved_tokens=["no such token", "</s>"])).preserved == (EOG,)
