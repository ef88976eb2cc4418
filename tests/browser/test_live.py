"""Answers that are changed while they are generated, and answers that survive the page and the server."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.chat_page import ChatPage, beginning, words
from tests.system.process import CorralProcess

LOST = "ERR_|Failed to load resource|503"


class Durable:
    """Mutable: a server with a journal, which can be killed and started again at the same address."""

    def __init__(self, model: Path, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        journal, chats = folder / "journal", folder / "chats"
        for path in (journal, chats):
            path.mkdir()
        files = ("-m", model, "--journal", journal, "--chats", chats)
        self._options = (*files, "-c", 65536, "-np", 4, "--context-shift")
        self._port = port
        self.server = self._start()

    @property
    def url(self) -> str:
        return self.server.url

    def kill(self) -> None:
        self.server.kill()

    def start_again(self) -> None:
        self.server = self._start()

    def _start(self) -> CorralProcess:
        return CorralProcess(*self._options, "--port", self._port)


@pytest.fixture(scope="module")
def durable(models, tmp_path_factory) -> Iterator[Durable]:
    durable = Durable(models / "llama-bpe.gguf", tmp_path_factory.mktemp("durable"))
    yield durable
    durable.server.stop()


def talk(chat: ChatPage) -> None:
    """Begin an answer without a grammar that does not end."""
    chat.set("Ignore EOS", True)
    chat.say("Talk.")
    expect(chat.last.locator(".markdown")).to_have_text(re.compile(r"[^ ].{40}", re.DOTALL))


def stop(chat: ChatPage) -> None:
    chat.page.get_by_role("button", name="Stop", exact=True).click()
    chat.wait_for_end()


def test_the_last_words_of_a_growing_answer_are_edited(page, durable):
    chat = ChatPage(page, durable.url).open()
    talk(chat)
    chat.do("Edit the last words")
    editor = page.get_by_label("The message")
    editor.fill("Once upon a time")
    page.get_by_role("button", name="Continue from here").click()
    expect(chat.last.locator(".markdown")).to_have_text(re.compile(r"^Once upon a time.{30}", re.DOTALL))
    stop(chat)
    assert chat.messages.count() == 2
    branches = chat.last.get_by_role("group", name="Branches")
    expect(branches).to_contain_text("2 / 2")
    chat.do("Previous branch")
    expect(branches).to_contain_text("1 / 2")
    expect(chat.last.locator(".ending")).to_contain_text("Stopped")  # it is not generated twice


def test_a_second_answer_is_forked_from_a_growing_one(page, durable):
    chat = ChatPage(page, durable.url).open()
    chat.never_end()
    chat.say("Talk.")
    chat.wait_for_words(5)
    begun = chat.answer_text()
    chat.do("Second answer from here")
    branches = chat.last.get_by_role("group", name="Branches")
    expect(branches).to_contain_text("2 / 2")
    expect(chat.last.locator(".markdown")).to_have_text(words(len(begun.split()) + 20))
    second = chat.answer_text()
    stop(chat)
    chat.do("Previous branch")
    expect(branches).to_contain_text("1 / 2")
    expect(chat.last.locator(".markdown")).to_have_text(beginning(begun))
    assert len(chat.answer_text()) > len(begun)
    assert second.startswith(begun)


def test_a_branch_that_waits_for_a_slot_says_so(page, models):
    with CorralProcess("-m", models / "llama-bpe.gguf", "-c", 4096, "-np", 1, "--context-shift") as server:
        chat = ChatPage(page, server.url).open()
        chat.never_end()
        chat.say("Talk.")
        chat.wait_for_words(5)
        chat.do("Pause")  # it keeps the only slot
        expect(chat.last.get_by_role("button", name="Resume")).to_be_visible()
        chat.do("Second answer from here")
        expect(chat.last.get_by_role("group", name="Branches")).to_contain_text("2 / 2")
        place = "Waiting: a free slot; place 1 in the queue"
        expect(chat.last.get_by_text(place)).to_be_visible()
        stop(chat)
        chat.do("Compare answers")
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="2 more").click()
        expect(dialog.get_by_text(place)).to_have_count(1)  # the other one is being written
        dialog.get_by_role("button", name="Stop", exact=True).click()
        page.keyboard.press("Escape")
        chat.wait_for_end()


def test_an_edit_ends_only_its_own_answer(page, durable):
    chat = ChatPage(page, durable.url).open()
    talk(chat)
    begun = chat.answer_text()
    chat.do("Second answer from here")
    branches = chat.last.get_by_role("group", name="Branches")
    expect(branches).to_contain_text("2 / 2")
    chat.do("Edit the last words")
    page.get_by_label("The message").fill("Once upon a time")
    page.get_by_role("button", name="Continue from here").click()
    expect(branches).to_contain_text("3 / 3")
    expect(chat.last.locator(".markdown")).to_have_text(re.compile(r"^Once upon a time.{30}", re.DOTALL))
    chat.do("Previous branch")
    expect(chat.last.locator(".ending")).to_contain_text("Stopped")
    chat.do("Previous branch")
    expect(branches).to_contain_text("1 / 3")
    expect(chat.last.get_by_role("button", name="Pause", exact=True)).to_be_enabled()
    expect(chat.last.locator(".markdown")).to_have_text(re.compile(rf"^.{{{len(begun) + 1},}}", re.DOTALL))
    n_chars = len(chat.answer_text())
    expect(chat.last.locator(".markdown")).to_have_text(re.compile(rf"^.{{{n_chars + 20},}}", re.DOTALL))
    stop(chat)


def test_an_answer_is_paused_and_resumed(page, durable):
    chat = ChatPage(page, durable.url).open()
    chat.never_end()
    chat.say("Talk.")
    chat.wait_for_words(5)
    chat.do("Pause")
    expect(chat.last.get_by_role("button", name="Resume", exact=True)).to_be_visible()
    n_words = len(chat.answer_text().split())
    chat.do("Resume")
    expect(chat.last.locator(".markdown")).to_have_text(words(n_words + 40))
    stop(chat)


def test_an_answer_goes_on_after_a_reload_and_on_another_device(page, new_page, durable, problems):
    problems.allow(f"409|{LOST}")  # both devices save the chat: it is merged
    chat = ChatPage(page, durable.url).open()
    chat.never_end()
    chat.say("Talk.")
    chat.wait_for_words(5)
    text = chat.answer_text()
    page.reload()
    chat.wait_until_ready()
    expect(chat.last.locator(".markdown")).to_have_text(words(len(text.split()) + 30))
    expect(chat.last.locator(".markdown")).to_have_text(beginning(text))
    there = ChatPage(new_page(), page.url)
    page.close()
    there.open()
    expect(there.last.locator(".markdown")).to_have_text(words(len(text.split()) + 60))
    expect(there.last.locator(".markdown")).to_have_text(beginning(text))
    stop(there)


def test_an_answer_goes_on_after_the_server_was_killed(page, durable, problems):
    problems.allow(LOST)
    chat = ChatPage(page, durable.url).open()
    chat.never_end()
    chat.say("Talk.")
    chat.wait_for_words(5)
    durable.kill()
    text = chat.answer_text()
    durable.start_again()
    expect(chat.last.locator(".markdown")).to_have_text(words(len(text.split()) + 30))
    expect(chat.last.locator(".markdown")).to_have_text(beginning(text))
    stop(chat)
    expect(page.get_by_text("could not be saved")).to_have_count(0)
