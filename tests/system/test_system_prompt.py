"""A system prompt on the real command, with a tokenizer that adds a BOS and one that does not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.system.process import CorralProcess

SYSTEM = (
    "Transcript of a dialog with a kind horse that never fails to answer.\nUser: Hello\nHorse: Hello world\n"
)
NAMES: dict[str, Any] = {"anti_prompt": "User:", "assistant_name": "Horse:"}
PROMPT = "User: the world and you\nHorse:"
MESSAGES = [{"role": "user", "content": "Hello to the world"}]
GREEDY = {"n_predict": 24, "temperature": 0, "return_tokens": True}
# In the shape that llama-server's documentation has.
EXAMPLE = r"""
{
    "system_prompt": {
        "prompt": "A talk with a clerk.\nUser: Is the \"Old Mill\" open?\nClerk: It's open till ten.\nUser:",
        "anti_prompt": "User:",
        "assistant_name": "Clerk:"
    }
}
"""


@pytest.fixture(scope="module", params=["llama-spm", "llama-bpe"])
def server(request, models):
    with CorralProcess("-m", models / f"{request.param}.gguf", "-c", 4096, "-np", 2, "--slots") as server:
        yield server


@pytest.fixture
def path(tmp_path):
    return tmp_path / "system_prompt.json"


def tokenize(server: CorralProcess, text: str, add_special: bool) -> list[int]:
    return server.post("/tokenize", content=text, add_special=add_special).json()["tokens"]


def test_an_answer_behind_it_is_that_to_all_tokens_at_once(server):
    system, own = tokenize(server, SYSTEM, True), tokenize(server, PROMPT, False)
    expected = server.complete(prompt=[*system, *own], **GREEDY)
    answer = server.complete(prompt=PROMPT, system_prompt=SYSTEM, **GREEDY)
    again = server.complete(prompt=PROMPT, cache_prompt=False, **GREEDY)
    as_tokens = server.complete(prompt=own, **GREEDY)
    for behind in (answer, again, as_tokens):
        assert behind["tokens"] == expected["tokens"]
        assert behind["tokens_evaluated"] == expected["tokens_evaluated"]
        assert behind["prompt"].strip() == PROMPT
    alone = server.complete(prompt=PROMPT, system_prompt="", **GREEDY)
    assert alone["tokens"] != expected["tokens"]
    assert alone["tokens_evaluated"] == len(tokenize(server, PROMPT, True))


def test_a_chat_behind_it(server):
    text = server.post("/apply-template", messages=MESSAGES).json()["prompt"]
    tokens = [*tokenize(server, SYSTEM, True), *tokenize(server, text, False)]
    expected = server.complete(prompt=tokens, **GREEDY)
    chat = {"messages": MESSAGES, "max_tokens": 24, "temperature": 0, "verbose": True}
    answer = server.post("/v1/chat/completions", system_prompt=SYSTEM, **chat).json()
    assert answer["__verbose"]["tokens"] == expected["tokens"]
    assert answer["__verbose"]["prompt"].strip() == text.strip()
    assert answer["usage"]["prompt_tokens"] == len(tokens)
    server.complete(system_prompt="")


def test_a_grammar_that_is_wrong_changes_nothing(server):
    before = server.complete(prompt=PROMPT, system_prompt=SYSTEM, **GREEDY)
    for change in ({"grammar": "root ::= ("}, {"json_schema": {"type": "strange"}}):
        response = server.post("/completion", prompt=PROMPT, system_prompt="Something else", **change)
        assert response.status_code == 400
        assert server.complete(prompt=PROMPT, **GREEDY)["tokens"] == before["tokens"]
    server.complete(system_prompt="")


def test_the_example_of_the_documentation(server, models, path):
    example = json.loads(EXAMPLE)
    answer = server.complete(**example)
    assert answer["content"] == ""
    n_system = answer["tokens_evaluated"]
    assert n_system == len(tokenize(server, example["system_prompt"]["prompt"], True))
    props = server.get("/props").json()
    assert (props["assistant_name"], props["user_name"]) == ("Clerk:", "User:")
    for slot in (0, 1):
        behind = server.complete(prompt=PROMPT, id_slot=slot, **GREEDY)
        assert behind["timings"]["cache_n"] > n_system - 8
        assert behind["generation_settings"]["stop"] == ["User:"]
    server.complete(system_prompt="")
    path.write_text(EXAMPLE)
    model = server.get("/props").json()["model_path"]
    with CorralProcess("-m", model, "-c", 4096, "-np", 2, "-spf", path) as started:
        props = started.get("/props").json()
        assert (props["assistant_name"], props["user_name"]) == ("Clerk:", "User:")
        assert started.complete(prompt=PROMPT, **GREEDY)["tokens"] == behind["tokens"]


FILES: dict[str, Any] = {
    "object": json.dumps({"prompt": SYSTEM, **NAMES}),
    "text": SYSTEM,
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_is_evaluated_before_anybody_asks(models, path, kind):
    path.write_text(FILES[kind])
    with CorralProcess("-m", models / "llama-spm.gguf", "-c", 1024, "-np", 2, "-spf", path) as server:
        system, own = tokenize(server, SYSTEM, True), tokenize(server, PROMPT, False)
        for slot in (1, 0):
            answer = server.complete(prompt=PROMPT, id_slot=slot, **GREEDY)
            assert answer["timings"]["cache_n"] > len(system) - 4
            assert answer["timings"]["prompt_n"] < len(own) + 4
        props = server.get("/props").json()
        names = ("Horse:", "User:") if kind == "object" else ("", "")
        assert (props["assistant_name"], props["user_name"]) == names
        server.complete(system_prompt="")
        expected = server.complete(
            prompt=[*system, *own], stop=answer["generation_settings"]["stop"], **GREEDY
        )
        assert answer["tokens"] == expected["tokens"]


BAD_FILES: dict[str, Any] = {
    "types": ('{"prompt": 5}', "'prompt'"),
    "no prompt": ('{"anti_prompt": "User:"}', "'prompt'"),
    "too long": ("the world " * 2000, "exceeds the available context size"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_file_that_cannot_be_used_ends_the_start(models, path, kind):
    content, reason = BAD_FILES[kind]
    path.write_text(content)
    options = ("-c", 512, "--system-prompt-file", path)
    server = CorralProcess("-m", models / "llama-bpe.gguf", *options, wait=False)
    assert server.process.wait(300) == 1
    server.stop()
    assert "--system-prompt-file" in server.lines[-1]
    assert reason in server.lines[-1]


@pytest.mark.parametrize("model", ["llama-spm", "llama-bpe"])
def test_a_context_shift_keeps_it(models, model):
    options = ("-c", 256, "--context-shift", "--slots")
    with CorralProcess("-m", models / f"{model}.gguf", *options) as server:
        system, own = tokenize(server, SYSTEM, True), tokenize(server, PROMPT, False)
        body = {**GREEDY, "n_predict": 300, "ignore_eos": True, "n_keep": 5}
        answer = server.complete(prompt=PROMPT, system_prompt=SYSTEM, **body)
        assert (answer["truncated"], answer["tokens_predicted"]) == (True, 300)
        assert answer["generation_settings"]["n_keep"] == 5
        kept = [*system, *own[:5]]
        held = server.post("/slots/0?action=tokens").json()["tokens"]
        assert held[: len(kept)] == kept
        assert held[len(kept) :] == answer["tokens"][-1 - len(held) + len(kept) : -1]
