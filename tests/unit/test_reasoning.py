"""Thoughts before an answer: told from it by their marks, whoever wrote the first of them."""

from __future__ import annotations

import pytest

from corral.chat.chat_format import ChatFormat
from corral.chat.jinja_template import ChatTemplate
from corral.chat.prompt import Chat, Prompt
from corral.chat.reasoning import ReasoningFormat, choose_tags, is_open
from tests.tools.answer import PARIS, USE, Message, collect, drain

SOURCES = {
    "<think>": "<tool_call> <think> </think>",
    "[THINK]": "[TOOL_CALLS] [THINK] [/THINK]",
    "<seed:think>": "<seed:tool_call> <function= <parameter= <seed:think>",
    "<reasoning>": "<reasoning></reasoning>",
    "<|channel>": "<|turn> <|think|> <|channel>thought <channel|>",
}
HERMES = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
NONE, AUTO, LEGACY = ReasoningFormat.NONE, ReasoningFormat.AUTO, ReasoningFormat.DEEPSEEK_LEGACY


def read(text: str, format: ReasoningFormat = AUTO, opened: bool = False, source: str = "<think>") -> Message:
    """The message in a text, which is the same in any two pieces."""
    chat_format = ChatFormat(ChatTemplate(SOURCES[source]))
    chat = Chat([{"role": "user", "content": "Hi"}], USE, reasoning=format)

    def parse(pieces: list[str]) -> Message:
        return collect(drain(chat_format.parser(chat, Prompt("", opened)), pieces))

    message = parse([text])
    assert all(parse([text[:at], text[at:]]) == message for at in range(1, len(text)))
    assert parse(list(text)) == message
    return message


@pytest.mark.parametrize("format", [AUTO, ReasoningFormat.DEEPSEEK])
@pytest.mark.parametrize(
    ("text", "opened", "content", "reasoning"),
    [
        ("<think>\nHm.\nSo:\n</think>\n\nHi!\n", False, "Hi!\n", "Hm.\nSo:"),
        ("\n <think>Hm.</think>Hi!", False, "Hi!", "Hm."),
        ("Hm.</think>Hi!", True, "Hi!", "Hm."),
        ("\nHm.\n</think>\n\nHi!", True, "Hi!", "Hm."),
        ("<think>Hm.</think>Hi!", True, "Hi!", "Hm."),
        ("<think>Hm. </thi", False, "", "Hm. </thi"),
        ("Hm.", True, "", "Hm."),
        ("<think></think>Hi!", False, "Hi!", ""),
        ("<think>\n\n</think>\n\nHi!", False, "Hi!", ""),
        ("</think>Hi!", True, "Hi!", ""),
        ("Hi!", False, "Hi!", ""),
        ("Hi <think>!</think>", False, "Hi <think>!</think>", ""),
        ("Hm.</think>Hi!", False, "Hm.</think>Hi!", ""),
        ("  <thin", False, "  <thin", ""),
        (" \n", False, " \n", ""),
        ("", False, "", ""),
        ("", True, "", ""),
    ],
)
def test_thoughts_are_told_from_the_answer(format, text, opened, content, reasoning):
    assert read(text, format, opened) == Message(content, reasoning)


@pytest.mark.parametrize(
    ("text", "opened"),
    [
        ("\n<think>\nHm.\n</think>\n\nHi!\n", False),
        ("Hm.</think>Hi!", True),
        ("Hm.", True),
        ("<think>Hm.", False),
        ("Hi!", False),
    ],
)
def test_without_a_format_everything_is_content(text, opened):
    assert read(text, NONE, opened) == Message(text)


@pytest.mark.parametrize(
    ("text", "opened", "content", "reasoning"),
    [
        ("<think>\nHm.\n</think>\n\nHi!", False, "<think>\nHm.\n</think>\n\nHi!", "Hm."),
        ("Hm.\n</think>\n\nHi!", True, "<think>Hm.\n</think>\n\nHi!", "Hm."),
        ("<think>Hm.", False, "<think>Hm.", "Hm."),
        ("Hi!", False, "Hi!", ""),
    ],
)
def test_the_legacy_format_shows_thoughts_twice(text, opened, content, reasoning):
    assert read(text, LEGACY, opened) == Message(content, reasoning)


@pytest.mark.parametrize("mark", SOURCES)
def test_every_family_has_its_marks(mark):
    end = choose_tags(SOURCES[mark]).end
    assert read(f"{mark}Hm.{end}Hi!", source=mark) == Message("Hi!", "Hm.")


@pytest.mark.parametrize("format", ReasoningFormat)
def test_calls_count_behind_thoughts_only(format):
    message = read(f"<think>Hm. {HERMES}</think>\n{HERMES}", format)
    assert message.calls == [PARIS]
    assert message.reasoning == ("" if format is NONE else f"Hm. {HERMES}")


def test_words_and_calls_behind_thoughts():
    message = read(f"Hm.</think>\n\nLet me see.\n{HERMES}", opened=True)
    assert message == Message("Let me see.", "Hm.", [PARIS])


def test_a_call_may_begin_with_white_space():
    chat_format = ChatFormat(ChatTemplate(" functools["))
    parser = chat_format.parser(Chat([], USE), Prompt("", False))
    text = ' functools[{"name": "get_weather", "arguments": {"city": "Paris"}}]'
    assert collect(drain(parser, [text])) == Message(calls=[PARIS])


def test_a_prompt_that_ends_with_a_mark_is_open():
    marks = choose_tags("")
    assert is_open("<|im_start|>assistant\n<think>\n", marks)
    assert not is_open("<think></think>\n", marks)


@pytest.mark.parametrize(
    ("text", "content", "reasoning"),
    [
        ("<|channel>thought\nHm.\n<channel|>Hi!", "Hi!", "Hm."),
        ("<|channel>thought\n<channel|>Hi!", "Hi!", ""),
        ("<|channel>thou", "", "thou"),
        ("Hi!", "Hi!", ""),
    ],
)
def test_the_label_of_a_channel_is_not_part_of_the_reasoning(text, content, reasoning):
    assert read(text, source="<|channel>") == Message(content, reasoning)
    assert read(text, NONE, source="<|channel>") == Message(text, "")
