"""The system prompt as a value: parsed, tokenized, put before prompts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.chat.guard import Guard
from corral.core.errors import ContextExceeded, CorralError, InvalidRequest
from corral.core.params import GenerationParams
from corral.engine.context_shift import plan_shift
from corral.generate.params import RequestDefaults
from corral.generate.prepare import apply_system_prompt, plan_completion
from corral.generate.prepare_chat import tokenize_chat
from corral.generate.system_prompt import (
    SystemPrompt,
    SystemText,
    parse_system_prompt,
    tokenize_system_prompt,
)
from corral.models.system_prompt import read_system_prompt
from corral.schema.completion import CompletionRequest
from corral.schema.nested import MAX_SYSTEM_CHARS
from tests.unit.fake import FakeVocab

BOS = 63
NONE = SystemPrompt()
NAMES = {"anti_prompt": "User:", "assistant_name": "Assistant:"}
tokens = st.lists(st.integers(0, 60), max_size=30)


class BosVocab(FakeVocab):
    """A tokenizer that adds a BOS to what may have one."""

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        own = super().tokenize(text, add_special, parse_special)
        return [BOS, *own] if add_special and self.adds_bos else own


WORDS = BosVocab(adds_bos=True)


def letters(text: str) -> list[int]:
    return WORDS.tokenize(text, False, True)


def prepare(system: SystemPrompt = NONE, **body):
    request = CompletionRequest.model_validate(body)
    return plan_completion(request, RequestDefaults(WORDS, 64, 2, GenerationParams(), system))


def system_prompt(given):
    """What a request makes of it."""
    return tokenize_system_prompt(parse_system_prompt(given), WORDS, 64)


def test_a_text_or_an_object_with_names():
    assert parse_system_prompt("Hi") == parse_system_prompt({"prompt": "Hi"}) == SystemText("Hi", "", "")
    assert parse_system_prompt({"prompt": "Hi", **NAMES}) == SystemText("Hi", "User:", "Assistant:")
    assert parse_system_prompt({"prompt": "Hi", "anti_prompt": None}) == SystemText("Hi", "", "")


@pytest.mark.parametrize(
    "given",
    [
        5,
        True,
        [],
        ["Hi"],
        {},
        NAMES,
        {"prompt": None},
        {"prompt": 5},
        {"prompt": ["Hi"]},
        {"prompt": "Hi", "anti_prompt": ["User:"]},
        {"prompt": "Hi", "assistant_name": 1},
        *({"prompt": "Hi", name: "x" * (n + 1)} for name, n in MAX_SYSTEM_CHARS.items()),
    ],
    ids=lambda given: str(given)[:40],
)
def test_anything_else_is_refused_by_name(given):
    with pytest.raises(InvalidRequest, match="'system_prompt'") as error:
        parse_system_prompt(given)
    assert error.value.details["param"] == "system_prompt"


def test_its_bos_is_that_of_all_prompts():
    assert system_prompt("ab") == SystemPrompt((BOS, *letters("ab")))
    assert system_prompt({"prompt": "", **NAMES}) == SystemPrompt((), **NAMES)
    base = RequestDefaults(WORDS, 64, 2, GenerationParams(), system_prompt("old"))
    silent, asked = (
        CompletionRequest.model_validate(body) for body in ({"prompt": ""}, {"system_prompt": "ab"})
    )
    assert apply_system_prompt(silent, base) == (base, None)
    changed, change = apply_system_prompt(asked, base)
    assert changed.system == change == system_prompt("ab")


def test_one_that_leaves_no_room_is_refused():
    assert len(system_prompt("a" * 61).tokens) == 62
    for n in (62, 63, 1000):
        with pytest.raises(ContextExceeded):
            system_prompt("a" * n)


@given(tokens, tokens)
def test_every_prompt_begins_with_it(system, own):
    prompt = SystemPrompt(tuple(system)).before(own, 64)
    assert prompt == ([*system, *own] if own else [])


def test_what_does_not_fit_behind_it_is_refused():
    system = SystemPrompt(tuple(range(10)))
    assert len(system.before([1] * 53, 64)) == 63
    with pytest.raises(ContextExceeded) as error:
        system.before([1] * 54, 64)
    assert error.value.details == {"n_prompt_tokens": 64, "n_ctx": 64}


def test_parameters_tell_of_it():
    params = GenerationParams(n_keep=3, stop=("end",))
    within = SystemPrompt((1, 2), "User:").within(params)
    assert (within.n_system, within.n_keep, within.stop) == (2, 3, ("end", "User:"))
    assert SystemPrompt((1, 2), "end").within(params).stop == ("end",)
    assert NONE.within(params) == params


def test_the_bos_comes_once():
    system = system_prompt("ab")
    for prompt, own in (
        ("cd", letters("cd")),
        ([7, "cd"], [7, *letters("cd")]),
        (["cd", 7], [*letters("cd"), 7]),
        ([7, 8], [7, 8]),
    ):
        assert prepare(system, prompt=prompt).prompts == [[BOS, *letters("ab"), *own]]
        expected = [BOS, *own] if not isinstance(prompt, list) or prompt[0] == "cd" else own
        assert prepare(prompt=prompt).prompts == [expected]


def test_a_request_brings_its_own():
    old = system_prompt("old")
    kept = prepare(old, prompt="x")
    assert kept.change is None
    assert kept.params.n_system == 4
    changed = prepare(old, prompt=["x", "y"], system_prompt={"prompt": "new", **NAMES}, stop="end")
    assert changed.change == SystemPrompt((BOS, *letters("new")), **NAMES)
    assert changed.prompts == [[BOS, *letters("new"), *letters(x)] for x in "xy"]
    assert changed.params.stop == ("end", "User:")
    removed = prepare(old, prompt="x", system_prompt="")
    assert removed.change == NONE
    assert removed.prompts == [[BOS, *letters("x")]]
    assert removed.params.n_system == 0


def test_a_change_alone_is_evaluated_and_not_continued():
    for body in ({}, {"prompt": ""}, {"prompt": None}):
        alone = prepare(system_prompt="ab", n_predict=50, **body)
        assert alone.prompts == [[BOS, *letters("ab")]]
        assert alone.params.n_predict == 0
        removed = prepare(alone.change, system_prompt="", **body)
        assert removed.prompts == [[]]
    with pytest.raises(ValueError, match="prompt"):
        prepare(n_predict=1)


def test_nothing_to_continue_is_still_nothing():
    system = system_prompt("ab")
    assert prepare(system, prompt="").prompts == [[]]


@pytest.mark.parametrize("guard", [None, Guard(["<s>", "</s>"])])
@pytest.mark.parametrize("adds_bos", [True, False])
def test_a_chat_behind_it_has_no_bos(guard, adds_bos):
    words = BosVocab(adds_bos)
    bos = [BOS] if adds_bos else []
    first = RequestDefaults(words, 64, 2, GenerationParams())
    later = replace(first, system=system_prompt("ab"))
    assert tokenize_chat("hello", first, guard) == [*bos, *letters("hello")]
    for text in ("hello", "<s>hello"):
        assert tokenize_chat(text, later, guard) == letters("hello")
    n_first = len(tokenize_chat("<s>hello", first, guard))
    assert n_first == (6 if adds_bos else 8)


@given(st.integers(0, 50), st.integers(1, 50), st.integers(0, 50), st.booleans())
def test_a_shift_keeps_it_and_counts_behind_it(n_own, n_system, n_keep, adds_bos):
    shift = (200, 256, n_system + n_own)
    assert plan_shift(*shift, n_keep, 8, adds_bos, n_system) == (n_system + n_keep, 8)
    assert plan_shift(*shift, n_keep, 8, adds_bos) == (adds_bos + n_keep, 8)
    assert plan_shift(*shift, -1, 8, adds_bos, n_system) == plan_shift(*shift, -1, 8, adds_bos)


TEXTS = {
    "object": json.dumps({"prompt": "Hi\n", **NAMES}),
    "as in a request": json.dumps({"system_prompt": {"prompt": "Hi\n", **NAMES}}),
    "text": "Hi\n",
    "text in a request": json.dumps({"system_prompt": "Hi\n"}),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_a_file_holds_an_object_or_a_text(tmp_path, kind):
    path = tmp_path / "file"
    path.write_text(TEXTS[kind])
    names = NAMES if "text" not in kind else {"anti_prompt": "", "assistant_name": ""}
    assert read_system_prompt(str(path)) == SystemText("Hi\n", **names)


@pytest.mark.parametrize("text", ['"Hi"', "[1, 2]", "42", '{"prompt": ', "{{ x }}", ""])
def test_what_is_no_object_is_a_text(tmp_path, text):
    path = tmp_path / "file.json"
    path.write_text(text)
    assert read_system_prompt(str(path)) == SystemText(text, "", "")


@pytest.mark.parametrize(
    "text", ["{}", json.dumps(NAMES), '{"prompt": 5}', '{"system_prompt": null}', b"\xff"]
)
def test_a_file_that_is_wrong(tmp_path, text):
    path = tmp_path / "file.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(CorralError, match="--system-prompt-file"):
        read_system_prompt(str(path))


def test_no_file_and_a_missing_one(tmp_path):
    assert read_system_prompt("") is None
    with pytest.raises(CorralError, match=r"--system-prompt-file.*nowhere"):
        read_system_prompt(str(tmp_path / "nowhere"))
