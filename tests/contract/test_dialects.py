"""One conversation through four APIs: the model is asked the same, and with a seed it answers the same."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.contract.inline import Server
from tests.contract.messages_client import tasks
from tests.contract.responses_client import text_of
from tests.contract.scripted import ScriptedServer
from tests.unit.fake import FakeBackend

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "string"}}}
FUNCTION: dict[str, Any] = {"name": "go", "description": "Go.", "parameters": SCHEMA}
TOOL: dict[str, Any] = {"type": "function", "function": FUNCTION}
N_TOKENS = 12

texts = st.text("ab \né<", min_size=1, max_size=10).filter(lambda text: text.strip() == text)


@dataclass(frozen=True)
class Turn:
    question: str
    argument: str  # of a call, unless it is empty
    result: str
    answer: str


turns = st.builds(Turn, texts, st.just("") | texts, texts, texts)


def chat_body(system: str, asked: list[Turn], options: dict, has_tools: bool) -> dict:
    messages: list[dict] = [{"role": "system", "content": system}] if system else []
    for i, turn in enumerate(asked):
        messages.append({"role": "user", "content": turn.question})
        if turn.argument:
            function = {"name": "go", "arguments": json.dumps({"x": turn.argument}, ensure_ascii=False)}
            messages += [
                {
                    "role": "assistant",
                    "tool_calls": [{"id": f"c{i}", "type": "function", "function": function}],
                },
                {"role": "tool", "tool_call_id": f"c{i}", "content": turn.result},
            ]
        messages.append({"role": "assistant", "content": turn.answer})
    tools = {"tools": [TOOL], "parallel_tool_calls": True} if has_tools else {}
    return {"messages": messages[:-1], "max_tokens": N_TOKENS, **options, **tools}


def messages_body(system: str, asked: list[Turn], options: dict, has_tools: bool) -> dict:
    messages: list[dict] = []
    for i, turn in enumerate(asked):
        messages.append({"role": "user", "content": turn.question})
        if turn.argument:
            use = {"type": "tool_use", "id": f"toolu_c{i}", "name": "go", "input": {"x": turn.argument}}
            result = {"type": "tool_result", "tool_use_id": f"toolu_c{i}", "content": turn.result}
            messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        messages.append({"role": "assistant", "content": turn.answer})
    about = {"name": "go", "description": "Go.", "input_schema": SCHEMA}
    tools = {"tools": [about]} if has_tools else {}
    more = {"system": system} if system else {}
    return {"messages": messages[:-1], "max_tokens": N_TOKENS, **options, **tools, **more}


def responses_body(system: str, asked: list[Turn], options: dict, has_tools: bool) -> dict:
    items: list[dict] = []
    for i, turn in enumerate(asked):
        items.append({"role": "user", "content": turn.question})
        if turn.argument:
            arguments = json.dumps({"x": turn.argument}, ensure_ascii=False)
            items += [
                {"type": "function_call", "call_id": f"c{i}", "name": "go", "arguments": arguments},
                {"type": "function_call_output", "call_id": f"c{i}", "output": turn.result},
            ]
        items.append({"role": "assistant", "content": turn.answer})
    tools = {"tools": [{"type": "function", **FUNCTION}]} if has_tools else {}
    more = {"instructions": system} if system else {}
    return {"input": items[:-1], "max_output_tokens": N_TOKENS, **options, **tools, **more}


def ollama_body(system: str, asked: list[Turn], options: dict, has_tools: bool) -> dict:
    messages: list[dict] = [{"role": "system", "content": system}] if system else []
    for turn in asked:
        messages.append({"role": "user", "content": turn.question})
        if turn.argument:
            call = {"function": {"name": "go", "arguments": {"x": turn.argument}}}
            messages += [
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "tool_name": "go", "content": turn.result},
            ]
        messages.append({"role": "assistant", "content": turn.answer})
    tools = {"tools": [TOOL]} if has_tools else {}
    limits = {**options, "num_predict": N_TOKENS}
    return {"messages": messages[:-1], "options": limits, "stream": False, **tools}


BODIES: dict[str, Any] = {
    "/v1/chat/completions": (chat_body, lambda a: a["choices"][0]["message"]["content"] or ""),
    "/v1/messages": (messages_body, lambda a: "".join(b.get("text", "") for b in a["content"])),
    "/v1/responses": (responses_body, text_of),
    "/api/chat": (ollama_body, lambda a: a["message"]["content"]),
}


def stream_text(path: str, text: str) -> str:
    """Join the text of a stream."""
    lines = [
        line.removeprefix("data: ") for line in text.splitlines() if line[:5] == "data:" or line[:1] == "{"
    ]
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    return "".join(_PIECES[path](event) for event in events)


_PIECES: dict[str, Any] = {
    "/v1/chat/completions": lambda e: "".join(c["delta"].get("content") or "" for c in e["choices"]),
    "/v1/messages": lambda e: e["delta"].get("text", "") if e["type"] == "content_block_delta" else "",
    "/v1/responses": lambda e: e["delta"] if e["type"] == "response.output_text.delta" else "",
    "/api/chat": lambda e: e["message"]["content"],
}


async def stream_all(server: Server, *conversation: Any) -> list[str]:
    """What each API streams."""
    answers = []
    for path, (make, _) in BODIES.items():
        response = await server.http.post(path, json={**make(*conversation), "stream": True})
        assert response.status_code == 200, (path, response.text)
        answers.append(stream_text(path, response.text))
    return answers


async def ask_all(server: Server, *conversation: Any) -> list[str]:
    """What each API answers."""
    answers = []
    for path, (make, read) in BODIES.items():
        response = await server.http.post(path, json=make(*conversation))
        assert response.status_code == 200, (path, response.text)
        assert "warnings" not in response.json()
        answers.append(read(response.json()))
    return answers


@given(system=st.just("") | texts, asked=st.lists(turns, min_size=1, max_size=3), seed=st.integers(0, 1000))
async def test_the_same_conversation_gets_the_same_answer_from_all(system, asked, seed):
    server = Server(FakeBackend(n_ctx=4096))
    answers = await ask_all(server, system, asked, {"seed": seed, "temperature": 0.5}, False)
    streamed = await stream_all(server, system, asked, {"seed": seed, "temperature": 0.5}, False)
    assert streamed == answers
    assert len(set(answers)) == 1
    assert len({tuple(task.prompt) for task in tasks(server)}) == 1
    assert len({task.params.sampling.seed for task in tasks(server)}) == 1


@given(system=st.just("") | texts, asked=st.lists(turns, min_size=1, max_size=3))
async def test_tools_and_their_results_are_shown_to_the_model_in_the_same_way(system, asked):
    server = ScriptedServer()
    server.say("done")
    assert await ask_all(server, system, asked, {"seed": 1}, True) == ["done"] * len(BODIES)
    assert await stream_all(server, system, asked, {"seed": 1}, True) == ["done"] * len(BODIES)
    prompts = {server.backend.vocab.detokenize(task.prompt) for task in tasks(server)}
    assert len(prompts) == 1
    assert len({task.params.constraint.text for task in tasks(server)}) == 1
