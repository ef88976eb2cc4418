"""Chat templates of many families, each with every kind of conversation: none refuses, nothing gets lost."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from corral.chat.chat_format import ChatFormat
from corral.chat.jinja_template import ChatTemplate
from corral.chat.message import parse_messages, parse_tools
from corral.chat.prompt import Chat
from corral.chat.template import TemplateError
from corral.core.errors import CorralError
from corral.media.collect import PlainCollector, mark_messages
from tests.tools.family import CONVERSATIONS, FAMILIES, load


@cache
def chat_format(name: str) -> ChatFormat:
    return ChatFormat(ChatTemplate(load(name), "<s>", "</s>"))


# Formats that a family's template must be told by.
FORMATS = {
    "qwen2.5": "hermes", "qwen3": "hermes", "qwq": "hermes", "hermes-3": "hermes", "granite-4": "hermes",
    "qwen3-coder": "qwen3-coder", "seed-oss": "seed-oss", "glm-4.6": "glm", "minimax-m2": "minimax",
    "llama3.1": "llama3", "llama3.2": "llama3", "llama3.3": "llama3", "mistral-nemo": "mistral",
    "mistral-small-3.2": "mistral-args", "devstral": "mistral-args", "magistral": "mistral-args",
    "functionary-v3.1": "functionary-v3.1", "functionary-v3.2": "functionary-v3.2",
    "deepseek-r1-distill": "deepseek", "deepseek-v3": "deepseek", "deepseek-v3.1": "deepseek-v3.1",
    "command-r7b": "command-r", "granite-3.3": "granite", "gpt-oss": "harmony", "kimi-k2": "kimi-k2",
    "firefunction-v2": "firefunction", "phi4-mini": "phi4", "nemotron-nano-v2": "nemotron",
    "smollm2": "generic", "gemma3": "generic", "llama2": "generic", "chatml": "generic",
}  # fmt: skip


def test_there_are_many_families():
    assert len(FAMILIES) >= 30


def chat_of(name: str) -> Chat:
    conversation = CONVERSATIONS[name]
    messages = parse_messages(mark_messages(list(conversation.messages), PlainCollector()))
    use = parse_tools(list(conversation.tools) if conversation.tools else None, None, parallel=True)
    return Chat(messages, use, conversation.kwargs)


def words_of(chat: Chat) -> list[str]:
    """What a prompt has to contain: the user's words, the results, the names of functions."""
    words = [tool.name for tool in chat.use.tools]
    for message in chat.messages:
        if message["role"] in ("user", "system", "tool"):
            content = message["content"]
            words += [content] if isinstance(content, str) else [part["text"] for part in content]
        words += [call["function"]["name"] for call in message.get("tool_calls", ())]
    return [word.strip() for word in words if word]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_takes_every_conversation(family):
    for conversation in CONVERSATIONS:
        chat = chat_of(conversation)
        prompt = chat_format(family).render(chat).text
        plain = prompt.replace('\\"', '"').replace("\\\\", "\\")
        for word in words_of(chat):
            said = word in prompt or word in plain or json.dumps(word)[1:-1] in prompt
            assert said, f"{word} in {conversation}"


PARAMETERS: dict[str, Any] = {
    "nothing": None,
    "no_properties": {"type": "object"},
    "any_argument": {"type": "object", "additionalProperties": {"type": "integer"}},
    "types": {
        "type": "object",
        "properties": {
            "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "listed": {"type": ["integer", "null"]},
            "one": {"const": 1},
            "some": {"enum": ["a", "b"]},
            "any": True,
        },
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_takes_functions_with_little_said_about_their_arguments(family):
    for name, parameters in PARAMETERS.items():
        function = {"name": name, **({} if parameters is None else {"parameters": parameters})}
        use = parse_tools([{"type": "function", "function": function}], None, parallel=True)
        chat = Chat(parse_messages([{"role": "user", "content": "Hello"}]), use)
        assert name in chat_format(family).render(chat).text


def test_a_template_that_needs_types_gets_them():
    source = (
        "{% macro show(properties) %}{% for name, part in properties | dictsort %}"
        "{{ name }}:{{ part.type | upper }}{{ part.description.strip() }};{{ show(part.properties or {}) }}"
        "{% endfor %}{% endmacro %}"
        "{% for tool in tools %}{{ show(tool.function.parameters.properties) }}{% endfor %}{{ messages }}"
    )
    parameters = {
        "type": "object",
        "properties": {**PARAMETERS["types"]["properties"], "point": {"$ref": "#/$defs/point"}},
        "$defs": {"point": {"type": "object", "properties": {"x": {"type": "integer"}}}},
    }
    use = parse_tools([{"type": "function", "function": {"name": "f", "parameters": parameters}}], None, True)
    prompt = ChatFormat(ChatTemplate(source)).render(Chat([{"role": "user", "content": "Hello"}], use)).text
    shown = "any:STRING;listed:INTEGER;maybe:INTEGER;one:INTEGER;point:OBJECT;x:INTEGER;some:STRING;"
    assert prompt.startswith(shown)


@pytest.mark.parametrize(("family", "format"), FORMATS.items())
def test_a_family_is_told_by_its_template(family, format):
    assert chat_format(family).format.name == format


def test_a_template_without_tools_hears_of_them_in_its_system_message():
    prompt = chat_format("smollm2").render(chat_of("tools")).text
    assert "get_weather" in prompt
    assert "tool_calls" in prompt


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "{% for m in messages %}{% if m.content == 'b' %}{% break %}{% endif %}a{% endfor %}",
            "a",
        ),
        ("{% generation %}x{% endgeneration %}", "x"),
        ("{{ {'b': 1, 'a': 'é<'} | tojson }}", '{"b": 1, "a": "é<"}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ {'a': 1} | tojson(separators=(',', ':')) }}", '{"a":1}'),
        ("{{ strftime_now('%Y')|int > 2000 }}", "True"),
        ("{% set n = namespace(x=[]) %}{% set _ = n.x.append(1) %}{{ n.x }}", "[1]"),
        ("{{ bos_token }}{{ tools is defined }}", "<s>False"),
    ],
)
def test_what_templates_use(source, expected):
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert ChatTemplate(source, "<s>", "</s>").render(messages) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ messages.clear() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ 'x' * 100000000 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}",
        "{{ raise_exception('no') }}",
        "{{ 1 / 0 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ undefined_function() }}",
    ],
)
def test_a_template_that_does_what_it_should_not_is_refused(source):
    try:
        rendered = ChatTemplate(source).render([{"role": "user", "content": "a"}])
    except TemplateError:
        return
    assert rendered == ""


def test_a_template_that_is_no_jinja_is_an_error_with_its_line():
    with pytest.raises(CorralError, match="line 2"):
        ChatTemplate("a\n{% if %}")


@pytest.mark.parametrize(
    "source", ["{{ 'a' | center(9999999999) }}", "{% set x = [1] | batch(9999999999, 1) | list %}"]
)
def test_nothing_is_evaluated_when_a_template_is_compiled(source):
    ChatTemplate(source)
