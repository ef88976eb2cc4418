"""The chat page with the default model: what one does with it every day."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect

from tests.browser.chat_page import ChatPage, keep_notes
from tests.system.process import CorralProcess


@pytest.fixture(scope="module")
def corral():
    with CorralProcess("-c", 4096, "-np", 4, "--slots", "--context-shift") as server:
        yield server


@pytest.fixture
def chat(page, corral) -> ChatPage:
    return ChatPage(page, corral.url).open()


def test_three_turns_each_know_what_was_said(chat, page):
    bodies = []
    page.on("request", lambda r: bodies.append(r.post_data_json) if "chat/completions" in r.url else None)
    chat.set("Max tokens", 12)
    chat.set("Temperature", 0)
    for text in ("My name is Ada.", "I like the sea.", "What is my name?"):
        assert chat.ask(text)
    assert chat.messages.count() == 6
    assert [m["role"] for m in bodies[2]["messages"]] == ["user", "assistant", "user", "assistant", "user"]
    assert bodies[2]["messages"][2]["content"] == "I like the sea."
    assert bodies[0]["max_tokens"] == 12
    expect(page).to_have_title(re.compile(r"^My name is Ada\."))


def test_the_answer_can_be_read_while_it_is_written_and_stopped(chat, page):
    chat.never_end()
    chat.say("Go on for ever.")
    chat.wait_for_words()
    timings = chat.last.locator(".timings")
    expect(timings).to_contain_text(re.compile(r"\d+ tokens"))
    expect(timings).to_contain_text(re.compile(r"[\d.]+ tokens/s"))
    expect(timings).to_have_attribute("title", re.compile(r"\d+ of \d+ cached; \d+ % of the context"))
    page.get_by_role("button", name="Stop", exact=True).click()
    chat.wait_for_end()
    expect(chat.last).to_contain_text("Stopped.")
    text = chat.answer_text()
    chat.do("Continue")
    expect(chat.last.locator(".markdown")).to_have_text(
        re.compile(re.escape(text[:40]) + f".{{{len(text)}}}", re.S)
    )
    page.keyboard.press("Escape")
    chat.wait_for_end()
    assert chat.messages.count() == 2, "it went on in the same message"


def test_what_was_cached_is_told(chat):
    chat.set("Max tokens", 4)
    chat.ask("Remember all of this: one, two, three, four, five, six, seven, eight, nine.")
    chat.ask("And now?")
    cached, of = chat.cached()
    assert 0 < cached < of


def test_regenerate_makes_a_branch_and_both_stay(chat):
    chat.force("first", "second")
    chat.set("Seed", 1)
    chat.ask("Say something.")
    chat.force("another")
    chat.do("Regenerate")
    expect(chat.last.locator(".markdown")).to_have_text("another")
    chat.wait_for_end()
    expect(chat.last.locator(".alternatives")).to_have_text("2 / 2")
    chat.do("Previous branch")
    expect(chat.last.locator(".markdown")).to_have_text(re.compile(r"^(first|second)\s*$"))
    expect(chat.last.locator(".alternatives")).to_have_text("1 / 2")


def test_an_edited_message_begins_a_branch_of_its_own(chat, page):
    chat.force("yes")
    chat.ask("Is it red?")
    chat.ask("Really?")
    first = chat.messages.first
    chat.do("Edit", first)
    first.get_by_label("The message").fill("Is it blue?")
    chat.do("Send as a new branch", first)
    expect(chat.messages).to_have_count(2)
    chat.wait_for_end()
    expect(chat.messages.first).to_contain_text("Is it blue?")
    chat.do("Previous branch", chat.messages.first)
    expect(chat.messages).to_have_count(4)  # what followed the other one is still there
    page.reload()
    chat.wait_until_ready()
    expect(chat.messages).to_have_count(4)
    expect(chat.messages.first).to_contain_text("Is it red?")


def test_an_answer_can_be_edited_too(chat):
    chat.force("yes")
    chat.ask("Is it red?")
    chat.do("Edit")
    chat.last.get_by_label("The message").fill("It is **blue**.")
    chat.do("Save as a new branch")
    expect(chat.last.locator("strong")).to_have_text("blue")
    assert chat.messages.count() == 2


def test_a_message_is_deleted_with_all_behind_it(chat, page):
    chat.force("yes")
    chat.ask("One?")
    chat.ask("Two?")
    chat.do("Delete", chat.messages.nth(2))
    expect(chat.messages).to_have_count(2)
    page.get_by_role("button", name="Undo").click()
    expect(chat.messages).to_have_count(4)
    page.reload()
    chat.wait_until_ready()
    expect(chat.messages).to_have_count(4)


@pytest.mark.parametrize("permissions", [["clipboard-write"], []], ids=["", "refused"])
def test_copy(corral, new_context, permissions):
    context = new_context(permissions=permissions)
    chat = ChatPage(context.new_page(), corral.url).open()
    chat.force("some *text* to copy")
    chat.ask("Say it.")
    keep_notes(chat.page)
    chat.do("Copy")
    expect(chat.last.get_by_role("button", name="Copied")).to_be_visible()
    context.grant_permissions(["clipboard-read"])
    assert chat.page.evaluate("navigator.clipboard.readText()") == "some *text* to copy"


def test_the_system_prompt_comes_first(chat, page):
    bodies = []
    page.on("request", lambda r: bodies.append(r.post_data_json) if "chat/completions" in r.url else None)
    chat.force("yes")
    chat.set("System prompt", "You are a pirate.")
    chat.ask("Hello")
    assert bodies[0]["messages"][0] == {"role": "system", "content": "You are a pirate."}


def test_thoughts_are_folded(chat):
    chat.force("<think>\nsecret thoughts\n</think>\n\nthe answer")
    chat.ask("Think about it.")
    reasoning = chat.last.locator("details.reasoning")
    expect(reasoning).to_be_visible()
    expect(chat.last.get_by_text("secret thoughts")).to_be_hidden()
    expect(reasoning.locator("summary")).to_have_text(re.compile(r"^Thought for [\d.]+ s$"))
    reasoning.locator("summary").click()
    expect(chat.last.get_by_text("secret thoughts")).to_be_visible()
    assert chat.answer_text() == "the answer"


def test_thoughts_are_open_while_they_run(chat, page):
    chat.set("Grammar", 'root ::= "<think>\\n" ("more " | "thoughts "){900}')
    chat.say("Think about it.")
    expect(chat.last.locator("details.reasoning .said")).to_be_visible()
    chat.last.locator("summary").click()
    expect(chat.last.locator("details.reasoning .said")).to_be_hidden()
    page.get_by_role("button", name="Stop", exact=True).click()
    chat.wait_for_end()


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris"]}},
            "required": ["city"],
        },
    },
}


def test_calls_of_tools_are_shown_and_can_be_answered(chat, page):
    bodies = []

    def require(route):
        body = route.request.post_data_json
        bodies.append(body)
        wants_call = not any(message["role"] == "tool" for message in body["messages"])
        choice = "required" if wants_call else "none"
        route.continue_(post_data=json.dumps({**body, "tool_choice": choice}))

    page.route("**/v1/chat/completions", require)
    chat.set("Tools", json.dumps([WEATHER]))
    chat.set("Max tokens", 60)
    chat.say("What is the weather in Paris?")
    call = chat.page.get_by_label("Call to get_weather")
    expect(call.locator("pre")).to_have_text(re.compile(r'"city": "Paris"'))
    call.get_by_label("Result").fill('{"sky": "blue"}')
    chat.page.get_by_role("button", name="Send the result").click()
    expect(chat.messages).to_have_count(4)
    chat.wait_for_end()
    expect(chat.messages.nth(2)).to_contain_text('"sky": "blue"')
    sent = bodies[-1]["messages"]
    assert sent[1]["tool_calls"][0]["function"]["name"] == "get_weather"
    assert (sent[2]["role"], sent[2]["tool_call_id"]) == ("tool", sent[1]["tool_calls"][0]["id"])


def test_every_token_tells_how_likely_it_was(chat):
    chat.set("Probabilities", 5)
    chat.set("Max tokens", 8)
    chat.set("Ignore EOS", True)
    chat.ask("Name a colour.")
    chat.do("Probabilities")
    tokens = chat.last.locator(".token")
    expect(tokens.nth(1)).to_be_visible()
    details = chat.page.locator(".token-details")
    tokens.nth(1).hover()
    expect(details).to_contain_text("%")
    assert details.locator(".token-bar").count() >= 5
    chat.do("Probabilities")
    expect(chat.last.locator(".markdown")).to_be_visible()


HOSTILE = (
    '<script>window.hacked = 1</script> <img src=x onerror="window.hacked = 2"> '
    "[link](javascript:window.hacked=3) <svg onload='window.hacked = 4'> "
    "<iframe srcdoc='<script>parent.hacked=5</script>'>"
)


def test_markup_that_a_model_writes_stays_text(chat, page):
    chat.force(HOSTILE)
    chat.ask("Attack me.")
    text = chat.answer_text()
    assert "<script>window.hacked = 1</script>" in text
    assert "onerror" in text
    page.reload()
    chat.wait_until_ready()
    expect(chat.last).to_contain_text("onerror")
    assert page.evaluate("window.hacked") is None
    assert chat.last.locator("script, img, iframe, svg[onload], a[href^=javascript]").count() == 0


RICH = "# Title\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nprint('hi')\n```\n\n- one\n\n$$x^2 = 4$$\n"


def test_markdown_tables_code_and_formulas(corral, new_context):
    context = new_context(permissions=["clipboard-read", "clipboard-write"])
    chat = ChatPage(context.new_page(), corral.url).open()
    chat.force(RICH)
    chat.ask("Show all you can.")
    expect(chat.last.locator("table td").first).to_have_text("1")
    expect(chat.last.locator("pre code .hljs-built_in, pre code .hljs-string").first).to_be_visible()
    expect(chat.last.locator(".katex").first).to_be_visible()
    keep_notes(chat.page)
    copy = chat.last.locator("pre").locator("..").get_by_role("button", name="Copy the code")
    copy.click()
    expect(copy).to_have_text("Copied")
    assert chat.page.evaluate("navigator.clipboard.readText()").strip() == "print('hi')"


def test_a_model_that_does_not_hear_takes_no_recordings(chat, page):
    expect(page.get_by_role("button", name="Add files")).to_be_visible()
    expect(page.get_by_role("button", name="Record audio")).to_have_count(0)
