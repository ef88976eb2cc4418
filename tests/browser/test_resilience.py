"""Reloads, lost servers, wrong keys: nothing is lost, and the page says what is wrong."""

from __future__ import annotations

import os
import re
import signal
import socket

import pytest
from playwright.sync_api import expect

from tests.browser.chat_page import ChatPage, words
from tests.system.process import START_S, CorralProcess, wait_until
from tests.tools.cut_proxy import CutProxy

LOST = "ERR_|Failed to load resource|503"


@pytest.fixture
def model(models):
    return models / "llama-bpe.gguf"


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def begin(chat: ChatPage) -> str:
    """An endless answer; what of it can be read."""
    chat.never_end()
    chat.say("Go on for ever.")
    chat.wait_for_words()
    return chat.answer_text()


def test_a_server_that_is_killed_in_the_middle_of_an_answer(page, model, port, problems):
    problems.allow(LOST)
    server = CorralProcess("-m", model, "-c", 2048, "--context-shift", "--port", port)
    chat = ChatPage(page, server.url).open()
    text = begin(chat)
    engine = server.engine
    os.kill(server.process.pid, signal.SIGKILL)
    server.stop()
    engine.wait(START_S)
    expect(page.locator(".banner.down")).to_contain_text("cannot be reached")
    assert chat.answer_text().startswith(text)
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_visible()
    with CorralProcess("-m", model, "-c", 2048, "--port", port):
        expect(page.locator(".banner.down, .banner.loading")).to_have_count(0)
        expect(chat.last.get_by_role("alert")).to_contain_text("The connection to the server was lost")
        chat.force("the rest")
        chat.do("Continue")
        expect(chat.last.locator(".markdown")).to_have_text(re.compile(r"the rest\s*$"))
        chat.wait_for_end()
        assert chat.answer_text().startswith(text)


def test_an_engine_that_is_killed_is_not_even_noticed(page, model):
    with CorralProcess("-m", model, "-c", 2048, "--context-shift") as server:
        chat = ChatPage(page, server.url).open()
        text = begin(chat)
        server.engine.kill()
        expect(chat.last.locator(".markdown")).to_have_text(words(len(text.split()) + 20))
        page.get_by_role("button", name="Stop", exact=True).click()
        assert chat.answer_text().startswith(text)


@pytest.mark.parametrize("is_kept_by", ["browser", "server"])
def test_a_reload_in_the_middle_of_an_answer(page, model, tmp_path, problems, is_kept_by):
    problems.allow(f"409|{LOST}")  # what was sent last has arrived after all: both are merged
    chats = ("--chats", tmp_path) if is_kept_by == "server" else ()
    with CorralProcess("-m", model, "-c", 2048, "--context-shift", *chats) as server:
        chat = ChatPage(page, server.url).open()
        text = begin(chat)
        page.reload()
        chat.wait_until_ready()
        expect(chat.last.locator(".markdown")).to_have_text(words(len(text.split()) + 20))
        assert chat.answer_text().startswith(text)
        page.get_by_role("button", name="Stop", exact=True).click()
        chat.wait_for_end()


@pytest.mark.parametrize("has_journal", [True, False])
def test_a_network_that_is_lost_in_the_middle_of_an_answer(page, model, tmp_path, problems, has_journal):
    problems.allow(LOST)
    journal = ("--journal", tmp_path) if has_journal else ()
    with (
        CorralProcess("-m", model, "-c", 2048, "--context-shift", "--slots", *journal) as server,
        CutProxy(int(server.url.rpartition(":")[2])) as network,
    ):
        chat = ChatPage(page, network.url).open()
        text = begin(chat)
        network.cut()
        expect(page.locator(".banner.down")).to_contain_text("cannot be reached")
        network.mend()
        text = grow(chat, text)
        page.context.set_offline(True)
        page.context.set_offline(False)
        grow(chat, text)
        page.get_by_role("button", name="Stop", exact=True).click()
        chat.wait_for_end()
        expect(page.locator(".banner.down")).to_have_count(0)
        wait_until(lambda: not server.get("/slots").json()[0]["is_processing"], 0.05)


def grow(chat: ChatPage, text: str) -> str:
    """Wait until an answer that begins with a text has many more words."""
    expect(chat.last.locator(".markdown")).to_have_text(words(len(text.split()) + 30))
    grown = chat.answer_text()
    assert grown.startswith(text)
    return grown


def test_another_tab_does_not_take_a_running_answer_for_a_lost_one(new_context, corral):
    context = new_context()
    chat = ChatPage(context.new_page(), corral.url).open()
    begin(chat)
    chat.wait_for_words(30)
    other = context.new_page()
    other.goto(chat.page.url)
    expect(other.locator("article.message")).to_have_count(2)
    expect(other.get_by_role("alert")).to_have_count(0)
    chat.page.keyboard.press("Escape")
    chat.wait_for_end()


def test_a_chat_goes_on_while_one_looks_at_another(page, corral):
    chat = ChatPage(page, corral.url).open()
    begin(chat)
    page.get_by_role("button", name="New chat", exact=True).click()
    chat.force("short")
    assert chat.ask("Meanwhile?") == "short"
    page.get_by_role("link", name="Go on for ever.").click()
    chat.wait_for_words(3)
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(chat.last).to_contain_text("Stopped.")


def test_a_key_is_asked_for_and_a_wrong_one_refused(page, model, problems):
    problems.allow("401")
    with CorralProcess("-m", model, "-c", 1024, "--api-key", "right") as server:
        page.goto(server.url)
        expect(page.get_by_role("dialog")).to_contain_text("This server requires a key")
        for _ in range(3):
            page.keyboard.press("Escape")
        expect(page.get_by_label("API key")).to_be_focused()
        page.get_by_label("API key").fill("wrong")
        page.get_by_role("button", name="Use this key").click()
        expect(page.get_by_role("alert")).to_contain_text("This key is not valid.")
        page.get_by_label("API key").fill("right")
        page.get_by_label("API key").press("Enter")
        chat = ChatPage(page, server.url)
        chat.wait_until_ready()
        expect(chat.box).to_be_focused()
        chat.force("let in")
        assert chat.ask("Hello") == "let in"
        page.reload()
        chat.wait_until_ready()
        expect(page.get_by_role("dialog")).to_have_count(0)


def test_the_page_says_how_far_a_start_is(page, corral, problems):
    problems.allow(LOST)
    loading = {"code": 503, "message": "Loading model", "type": "unavailable_error"}
    stage = {"stage": "re-encoding", "progress": 0.417, "detail": "the weights from Q4_1 to Q8_0: faster"}
    page.route("**/props", lambda route: route.fulfill(status=503, json={"error": {**loading, **stage}}))
    page.goto(corral.url)
    banner = page.locator(".banner.loading")
    expect(banner).to_contain_text("re-encoding the weights from Q4_1 to Q8_0: faster: 42 %")
    page.unroute("**/props")
    ChatPage(page, corral.url).wait_until_ready()


def test_the_page_waits_for_a_model_that_is_loading(page, port, problems):
    problems.allow(LOST)
    server = CorralProcess("-c", 1024, "--port", port, wait=False)
    server.wait_for("listening on")
    page.goto(f"http://127.0.0.1:{port}/")
    ChatPage(page, "").wait_until_ready()
    server.stop()


@pytest.mark.parametrize("file", ["js/view/tools_dialog.js", "css/tools.css"])
def test_a_part_of_the_page_that_did_not_come_can_be_asked_for_again(page, corral, problems, file):
    problems.allow("ERR_")
    chat = ChatPage(page, corral.url).open()
    page.route(f"**/{file}*", lambda route: route.abort())
    page.get_by_role("button", name="Tools", exact=True).click()
    notice = page.get_by_role("alert").filter(has=page.get_by_role("button", name="Try again"))
    expect(notice).to_be_visible()
    notice.get_by_role("button", name="Try again").click()
    expect(notice).to_be_visible()
    page.unroute_all()
    notice.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("dialog", name="Tools")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    chat.set("Max tokens", 3)
    chat.ask("Hello")


@pytest.mark.parametrize("status", [0, 503])
def test_a_chat_is_saved_when_the_server_is_back(page, model, tmp_path, problems, status):
    problems.allow(LOST)
    with CorralProcess("-m", model, "-c", 1024, "--chats", tmp_path) as server:
        chat = ChatPage(page, server.url).open()
        chat.force("yes")
        refuse = (lambda r: r.fulfill(status=status, json={})) if status else (lambda r: r.abort())
        page.route("**/chats/*", refuse)
        with page.expect_request("**/chats/*"):
            chat.ask("Hello")
        expect(page.get_by_text("could not be saved")).to_have_count(0)
        with page.expect_response(lambda r: "/chats/" in r.url and r.request.method == "PUT" and r.ok):
            page.unroute("**/chats/*")
        page.reload()
        expect(chat.messages).to_have_count(2)


def test_an_error_of_saving_is_shown_until_the_chat_is_saved(page, model, tmp_path, problems):
    problems.allow("500")
    with CorralProcess("-m", model, "-c", 1024, "--chats", tmp_path) as server:
        chat = ChatPage(page, server.url).open()
        chat.force("yes")
        page.route("**/chats/*", lambda route: route.fulfill(status=500, json={}))
        chat.ask("Hello")
        expect(page.get_by_text("could not be saved")).to_be_visible()
        page.unroute("**/chats/*")
        chat.ask("And now?")
        expect(page.get_by_text("could not be saved")).to_have_count(0)
