"""Answers of every family of models, read whole, in pieces, broken off, and made of nonsense."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.chat.event import CallStarted
from corral.chat.tool import Tool, ToolChoice, ToolUse
from tests.tools.answer import BY_NAME, FAMILIES, PARIS, ROME, TOUR, Message, events_of, read
from tests.tools.cuts import cuts
from tests.tools.examples import examples, some

WORDS = "Hello, world!\n\nWhat's  up? 5 < 6 🤗"
CODE = ToolUse((Tool("python", {"type": "object"}, {}),), ToolChoice.AUTO)
NAMES = pytest.mark.parametrize("name", FAMILIES)


def samples(name: str) -> list[tuple[str, Message]]:
    """Texts of one family, and the messages they are."""
    family = FAMILIES[name]
    texts = [
        (family.calls([PARIS]), Message(calls=[PARIS])),
        (family.calls([ROME, TOUR]), Message(calls=[ROME, TOUR])),
        (family.calls([TOUR]), Message(calls=[TOUR])),
        (family.words(WORDS), Message(WORDS)),
        (family.words(""), Message()),
    ]
    if family.both:
        text = family.both(family.words("Let me see.\n\n"), family.calls([PARIS, ROME]))
        texts.append((text, Message("Let me see.", calls=[PARIS, ROME])))
    return texts


def test_every_format_is_tested():
    assert FAMILIES.keys() == BY_NAME.keys()


@NAMES
def test_calls_and_words_are_told_apart(name):
    for text, message in samples(name):
        assert read(BY_NAME[name], [text]) == message


@NAMES
def test_any_split_gives_the_same_message(name):
    for text, message in samples(name):
        assert read(BY_NAME[name], list(text)) == message
        for at in some(range(1, len(text))):
            assert read(BY_NAME[name], [text[:at], text[at:]]) == message


@NAMES
def test_a_call_that_is_cut_off_comes_back_as_text(name):
    text = FAMILIES[name].calls([PARIS])
    for at in range(1, len(text)):
        message = read(BY_NAME[name], list(text[:at]))
        if message.calls:
            assert message == Message(calls=[PARIS])
        else:
            assert message.content == text[:at]
        assert len(message.calls) + message.n_diagnoses <= 1


@NAMES
def test_a_second_call_that_is_cut_off_leaves_the_first_alone(name):
    text = FAMILIES[name].calls([PARIS, ROME])
    at = text.index("Rome") + 2
    message = read(BY_NAME[name], [text[:at]])
    assert message.calls == [PARIS]
    assert message.n_diagnoses == 1
    assert message.content.endswith("Ro")
    assert "Paris" not in message.content


@NAMES
def test_a_broken_call_comes_back_as_text_with_a_diagnosis(name):
    family = FAMILIES[name]
    text = family.calls([PARIS]).replace(*family.broken)
    for before in ("", " \n") if name != "functionary-v3.2" else ("",):
        message = read(BY_NAME[name], [before + text])
        # What ends a message of harmony is no part of it.
        assert message == Message((before + text).removesuffix("<|call|>"), n_diagnoses=1)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        # Forms that differ from the usual.
        (
            "deepseek",
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}```",
            Message(calls=[("f", {})]),
        ),
        ("command-r", "<|START_TEXT|>Hi<|END_TEXT|>", Message("Hi")),
        ("command-r", '<|START_ACTION|>{"tool_name": "f"}<|END_ACTION|>', Message(calls=[("f", {})])),
        (
            "kimi-k2",
            "<|tool_call_begin|>functions.f<|tool_call_argument_begin|>{}",
            Message(calls=[("f", {})]),
        ),
        ("kimi-k2", "<|tool_call_begin|>a.b:7<|tool_call_argument_begin|>{}", Message(calls=[("a.b", {})])),
        ("harmony", " to=functions.f<|channel|>commentary<|message|>{}", Message(calls=[("f", {})])),
        (
            "harmony",
            "<|channel|>analysis to=get_weather code<|message|>{}",
            Message(calls=[("get_weather", {})]),
        ),
        (
            "harmony",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi",
            Message("Hi", "Hm."),
        ),
        (
            "harmony",
            "<|channel|>commentary to=assistant<|channel|>analysis<|message|>Hm.<|start|>assistant"
            "<|channel|>commentary<|message|>Wait.<|end|>",
            Message("Wait.", "Hm."),
        ),
        ("harmony", "Hello there", Message("Hello there")),
        ("minimax", '<minimax:tool_call><invoke name="f"></invoke>', Message(calls=[("f", {})])),
        ("glm", "<tool_call>f</tool_call>", Message(calls=[("f", {})])),
        (
            "glm",
            "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>",
            Message(calls=[PARIS]),
        ),
        ("qwen3-coder", "Now:\n<function=f>\n</function>\n</tool_call>", Message("Now:", calls=[("f", {})])),
        ("hermes", '<tool_call>[{"name": "f"}, {"name": "g"}]', Message(calls=[("f", {}), ("g", {})])),
        ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}', Message(calls=[("f", {"a": 1})])),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}', Message(calls=[("f", {"a": 1})])),
        ("mistral", '[TOOL_CALLS] {"name": "f", "arguments": {}}', Message(calls=[("f", {})])),
        ("mistral-args", '[TOOL_CALLS][{"name": "f", "arguments": {}}]', Message(calls=[("f", {})])),
        ("mistral-args", '[TOOL_CALLS]f[ARGS] {"a": 1}', Message(calls=[("f", {"a": 1})])),
        (
            "lfm2",
            "<|tool_call_start|>[a.f(x='it\\'s', y=[True, None, -1.5])]",
            Message(calls=[("a.f", {"x": "it's", "y": [True, None, -1.5]})]),
        ),
        (
            "lfm2",
            "<|tool_call_start|>[f(from={'a': true, 1: null}), g()]",
            Message(calls=[("f", {"from": {"a": True, "1": None}}), ("g", {})]),
        ),
        ("llama3", '\n{"name": "get_weather", "parameters": {}}; ', Message(calls=[("get_weather", {})])),
        ("llama3", 'Yes:<|python_tag|>{"name": "get_weather"}', Message("Yes:", calls=[("get_weather", {})])),
        (
            "llama3",
            '<|python_tag|>get_weather.call(city="Paris, \\"Texas\\"", days=2)',
            Message(calls=[("get_weather", {"city": 'Paris, "Texas"', "days": 2})]),
        ),
        ("functionary-v3.2", "all\n>>> 1 + 1\n2\n>>>all\n!", Message(">>> 1 + 1\n2\n!")),
        ("generic", '{"tool_call": {"name": "f", "arguments": {}}}', Message(calls=[("f", {})])),
        ("generic", "Hello", Message("Hello")),
        ("generic", '{"response": "un\\u00e9 \\ud83e\\udd17', Message("uné 🤗")),
        # Words behind calls.
        ("hermes", 'Hi <tool_call>{"name": "f"}</tool_call>\nBye\n', Message("Hi\nBye", calls=[("f", {})])),
        ("hermes", '<tool_call>{"name": "f"}</tool_call>\n\nBye', Message("Bye", calls=[("f", {})])),
        # No calls.
        ("deepseek", "<｜tool▁call▁begin｜><｜tool▁sep｜>{}", ...),
        ("command-r", '<|START_ACTION|>[{"name": "f"}]', ...),
        ("functionary-v3.2", "get_weather\nParis", ...),
        ("functionary-v3.2", 'no_such\n{"a": 1}', Message('no_such\n{"a": 1}')),
        ("functionary-v3.1", "<function=>{}", ...),
        ("functionary-v3.1", "<|python_tag|>1 + 1", ...),
        ("kimi-k2", "<|tool_call_begin|>functions.:0 {}", ...),
        (
            "harmony",
            "<|channel|>final<|message|>Hi<|start|>assistant to=functions.f<|message|>oops, no<|call|>",
            Message("Hi<|start|>assistant to=functions.f<|message|>oops, no", n_diagnoses=1),
        ),
        ("minimax", "<minimax:tool_call>Paris", ...),
        ("glm", "<tool_call>\n</tool_call>", ...),
        ("qwen3-coder", "<tool_call>{}", ...),
        ("qwen3-coder", "<tool_call><function=f>Paris</function>", ...),
        ("hermes", "<tool_call>get_weather", ...),
        ("hermes", '<tool_call>{"name": "f", "arguments": [1]}', ...),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": NaN}}', ...),
        ("hermes", '<tool_call>{"name": "f", "arguments": "no JSON"}', ...),
        ("hermes", '<tool_call>{"arguments": "no JSON", "name": "f"}', ...),
        ("granite", "<|tool_call|>[1]", ...),
        ("firefunction", "Python has functools and more", ...),
        ("mistral-args", "[TOOL_CALLS][ARGS]{}", ...),
        ("lfm2", "<|tool_call_start|>[f(1 + x)]<|tool_call_end|>", ...),
        ("lfm2", "<|tool_call_start|>[f(a=g())]<|tool_call_end|>", ...),
        ("llama3", '{"name": "no_such", "parameters": {}}', ...),
        ("llama3", '{"city": "Paris"} is JSON', ...),
        ("llama3", "<|python_tag|>print(1)", ...),
        ("llama3", "Yes:<|python_tag|>print(1)", ...),
        ("llama3", '<|python_tag|>{"city": "Paris"} is JSON', ...),
        ("generic", '{"answer": 42}', Message('{"answer": 42}')),
        ("generic", '{"response": 42}', Message('{"response": 42}')),
    ],
)
def test_other_forms(name, text, expected):
    """`...`: what looks like a call is none."""
    message = Message(text, n_diagnoses=1) if expected is ... else expected
    assert read(BY_NAME[name], [text]) == message
    assert read(BY_NAME[name], list(text)) == message


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("functionary-v3.2", "python\nprint(1)\n>>> 2"),
        ("functionary-v3.1", "<|python_tag|>print(1)\n>>> 2"),
        ("llama3", "<|python_tag|>print(1)\n>>> 2"),
    ],
)
def test_programs_are_calls_of_what_runs_them(name, text):
    assert read(BY_NAME[name], list(text), CODE).calls == [("python", {"code": "print(1)\n>>> 2"})]


def test_ids_of_calls_are_the_models_own_where_it_writes_them():
    for name, id in (
        ("kimi-k2", "functions.get_weather:0"),
        ("mistral-args", "abcdefgh0"),
        ("command-r", "0"),
    ):
        events = events_of(BY_NAME[name], [FAMILIES[name].calls([PARIS])])
        assert [event.id for event in events if isinstance(event, CallStarted)] == [id]


def fragments(name: str) -> st.SearchStrategy[str]:
    """Texts that are made of what the family's calls are made of."""
    family, format = FAMILIES[name], BY_NAME[name]
    whole = [family.calls([PARIS]), family.calls([ROME, TOUR]), family.words("Hi")]
    parts = [
        *format.markers,
        *format.trigger,
        *whole,
        "get_weather",
        '{"name": "',
        '"arguments": ',
        ">>>",
        "all",
    ]
    parts += [
        '"',
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\\",
        "\n",
        " ",
        "=",
        "(",
        ")",
        "'",
        "<",
        "é",
        "1",
        "\\ud83e",
    ]
    some = st.sampled_from(parts) | st.sampled_from(whole).flatmap(piece_of) | st.text(max_size=3)
    return st.lists(some, max_size=12).map("".join)


def piece_of(text: str) -> st.SearchStrategy[str]:
    places = st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))
    return places.map(lambda ends: text[min(ends) : max(ends)])


@NAMES
def test_nonsense_is_read_the_same_in_any_pieces(name):
    @examples(60)
    @given(cuts(fragments(name)))
    def law(cut):
        text, pieces = cut
        whole = read(BY_NAME[name], [text])
        assert read(BY_NAME[name], pieces) == whole
        assert read(BY_NAME[name], list(text)) == whole

    law()


@NAMES
def test_words_are_never_lost(name):
    @examples(60)
    @given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters='{<["[>')))
    def law(text):
        if " functools" not in text:
            assert read(BY_NAME[name], list(FAMILIES[name].words(text))) == Message(text)

    law()
