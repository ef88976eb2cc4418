"""What the server refuses: the page offers what a person at it can do, not options of the server."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.chat_page import ChatPage
from tests.system.process import CorralProcess

N_CTX = 256
LONG = "many words " * 400


@pytest.fixture(scope="module")
def small(models):
    """A server with little room."""
    with CorralProcess("-m", models / "llama-bpe.gguf", "-c", N_CTX) as server:
        yield server


@pytest.fixture
def chat(page, small, problems) -> ChatPage:
    problems.allow("400")
    opened = ChatPage(page, small.url).open()
    opened.force("yes")
    opened.use_for_new_chats()
    page.get_by_role("button", name="Close the settings").click()
    return opened


def error(chat: ChatPage):
    return chat.last.get_by_role("alert")


def expect_offers(chat: ChatPage, *texts: str) -> None:
    expect(error(chat).get_by_role("button")).to_have_text(texts)


def test_a_first_message_that_is_too_long_can_be_shortened(chat):
    chat.ask("Hello, " + LONG)
    expect(error(chat)).to_contain_text(str(N_CTX))
    expect(error(chat)).not_to_contain_text("--")
    expect_offers(chat, "Shorten the message", "Start a new chat")
    chat.do("Shorten the message")
    editor = chat.messages.first.get_by_label("The message")
    expect(editor).to_be_focused()
    editor.fill("Hello")
    chat.do("Send as a new branch", chat.messages.first)
    expect(chat.last.locator(".markdown")).to_have_text("yes")
    expect(chat.messages).to_have_count(2)


def test_a_conversation_that_is_too_long_can_go_on_from_an_earlier_message(chat, page):
    chat.ask("First question")
    chat.ask("Second question")
    chat.ask("Third question, " + LONG)
    expect_offers(chat, "Shorten the message", "Go back to an earlier message", "Start a new chat")
    page.reload()
    chat.wait_until_ready()
    expect(error(chat).get_by_role("button"), "they are kept with the chat").to_have_count(3)
    chat.do("Go back to an earlier message")
    editor = chat.messages.nth(2).get_by_label("The message")
    expect(editor).to_be_focused()
    expect(editor).to_be_in_viewport()
    expect(editor).to_have_value("Second question")
    editor.fill("Another second question")
    chat.do("Send as a new branch", chat.messages.nth(2))
    expect(chat.messages).to_have_count(4)
    expect(chat.last.locator(".markdown")).to_have_text("yes")


def test_a_new_chat_begins_with_what_did_not_fit(chat):
    chat.ask("First question, " + "many words " * 22)
    chat.ask("Second question, " + "many words " * 22)
    expect(error(chat).get_by_role("button", name="Start a new chat")).to_be_visible()
    chat.do("Start a new chat")
    expect(chat.messages).to_have_count(0)
    expect(chat.box).to_have_value(re.compile("^Second question"))
    chat.box.press("Enter")
    expect(chat.last.locator(".markdown")).to_have_text("yes")


def test_a_tool_result_that_is_too_long_cannot_be_shortened(chat, page):
    page.evaluate(
        """async (long) => {
          const { openLocalStore } = await import("/js/store.js");
          const { addMessage, newChat } = await import("/js/tree.js");
          const say = (chat, message) => addMessage(chat, chat.leaf, message);
          const call = { id: "call", name: "look", arguments: "{}" };
          let chat = say({ ...newChat(), title: "Tools" }, { role: "user", content: "Look." });
          chat = say(chat, { role: "assistant", toolCalls: [call] });
          chat = say(chat, { role: "tool", toolCallId: "call", content: long });
          chat = say(chat, { role: "assistant", state: "stopped" });
          await (await openLocalStore()).save(chat);
        }""",
        LONG,
    )
    page.reload()
    chat.wait_until_ready()
    page.get_by_role("link", name="Tools").click()
    chat.do("Regenerate")
    expect(error(chat)).to_contain_text("too long")
    expect_offers(chat, "Go back to an earlier message", "Start a new chat")


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (
            413,
            {"message": "the body is larger than 1 MiB (--max-body-mb)"},
            ["Shorten the message", "Start a new chat"],
        ),
        (
            501,
            {"message": "no image input: --mmproj FILE", "param": "messages[0].content"},
            ["Start a new chat"],
        ),
        (501, {"message": "This server does not support completions. Start it without `--embeddings`"}, []),
        (
            503,
            {"message": "the queue is full: 2 requests are waiting, the limit is 1 (--queue-size)"},
            ["Try again"],
        ),
        (400, {"message": "something is wrong"}, ["Try again"]),
    ],
)
def test_an_option_that_an_error_names_is_said_to_be_the_operators(
    chat, page, problems, status, body, expected
):
    problems.allow(str(status))
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=status, json={"error": body}))
    chat.ask("Hello")
    text = error(chat).inner_text()
    assert ("--" in text) == ("operator" in text), text
    expect_offers(chat, *expected)


def test_an_answer_that_fills_the_context_does_not_offer_to_continue(chat):
    chat.set("Grammar", 'root ::= "word "{900}')
    chat.say("Go on for ever.")
    expect(chat.last.locator(".ending")).to_contain_text("The context is full")
    expect(chat.last.locator(".ending").get_by_role("button")).to_have_text(["Start a new chat"])
    chat.page.reload()
    chat.wait_until_ready()
    expect(chat.last.locator(".ending")).to_contain_text("The context is full")
