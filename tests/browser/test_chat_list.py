"""The list of chats: kept, searched, renamed, moved in and out; in the browser, and on the server."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import FilePayload, expect

from tests.browser.chat_page import ChatPage, redraw
from tests.system.process import CorralProcess


@pytest.fixture
def chat(page, corral) -> ChatPage:
    opened = ChatPage(page, corral.url).open()
    opened.force("yes", "no")
    opened.use_for_new_chats()
    return opened


def fill(chat: ChatPage, *texts: str) -> None:
    """A chat for each text."""
    for text in texts:
        chat.page.get_by_role("button", name="New chat", exact=True).click()
        chat.ask(text)


def test_chats_are_kept(chat, page):
    fill(chat, "About apples", "About pears")
    expect(page.locator(".entry a")).to_have_text(["About pears", "About apples"])
    page.reload()
    chat.wait_until_ready()
    expect(chat.messages.first).to_contain_text("About pears")
    page.get_by_role("link", name="About apples").click()
    expect(chat.messages.first).to_contain_text("About apples")


def test_search_looks_into_messages(chat, page):
    fill(chat, "About apples", "About pears")
    chat.ask("Tell me of zebras, too.")
    page.get_by_label("Search chats").fill("ZEBRA")
    expect(page.locator(".found-title")).to_have_text(["About pears"])
    page.get_by_label("Search chats").fill("nothing like this")
    expect(page.get_by_text("Nothing found.")).to_be_visible()
    page.get_by_label("Search chats").fill("")
    expect(page.locator(".entry a")).to_have_count(2)


def test_rename_and_delete(chat, page):
    fill(chat, "About apples", "About pears")
    chat.choose("About apples", "Rename")
    expect(page.get_by_label("Chat title")).to_be_focused()
    page.get_by_label("Chat title").fill("Fruit")
    redraw(page)
    page.get_by_label("Chat title").press("Enter")
    expect(page.locator(".entry a", has_text="Fruit")).to_be_visible()
    page.reload()
    chat.wait_until_ready()
    chat.choose("Fruit", "Delete")
    expect(page.locator(".entry a")).to_have_text(["About pears"])
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".entry a")).to_have_text(["Fruit", "About pears"])
    chat.choose("Fruit", "Delete")
    expect(page.locator(".entry a")).to_have_text(["About pears"])
    chat.choose("About pears", "Delete")
    expect(page.get_by_text("Chats appear here.")).to_be_visible()
    expect(chat.messages).to_have_count(0)


def test_export_and_import(chat, page, new_page, tmp_path):
    fill(chat, "About apples", "About pears")
    with page.expect_download() as one:
        chat.choose("About apples", "Export")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export all chats").click()
    file = tmp_path / "chats.json"
    download.value.save_as(file)
    assert one.value.suggested_filename == "About apples.json"
    assert len(json.loads(file.read_text())["chats"]) == 2
    other = ChatPage(new_page(), chat.url).open()
    other.page.get_by_label("File with chats").set_input_files(file)
    expect(other.page.get_by_text("2 chats were imported.")).to_be_visible()
    other.page.get_by_role("link", name="About apples").click()
    expect(other.messages).to_have_count(2)


DAY_MS = 86_400_000


def file_of_weeks(now_ms: int, n_chats: int = 12) -> FilePayload:
    """Chats of the last six weeks, the newest first."""
    chats = []
    for i in range(n_chats):
        time = now_ms - i * 42 * DAY_MS // n_chats
        message = {"id": f"{i:032x}", "parent": None, "role": "user", "content": f"Question {i}"}
        chats.append(
            {
                **{"id": f"{100 + i:032x}", "title": f"Chat {i}", "createdAt": time, "updatedAt": time},
                **{"system": "", "settings": {}, "leaf": f"{i:032x}"},
                "messages": {f"{i:032x}": {**message, "state": "done", "createdAt": time}},
            }
        )
    text = json.dumps({"format": "corral-chats", "version": 1, "chats": chats})
    return {"name": "chats.json", "mimeType": "application/json", "buffer": text.encode()}


def test_imported_chats_keep_their_times(page, corral):
    ChatPage(page, corral.url).open()
    page.get_by_label("File with chats").set_input_files(file_of_weeks(page.evaluate("Date.now()")))
    expect(page.locator(".entry a")).to_have_text([f"Chat {i}" for i in range(12)])
    expect(page.locator(".chats h2")).to_have_text(["Today", "Last seven days", "Earlier"])


def test_news_of_a_success_leave_by_themselves(page, corral):
    page.clock.install()
    ChatPage(page, corral.url).open()
    before = page.locator(".thread").bounding_box()
    page.get_by_label("File with chats").set_input_files(file_of_weeks(page.evaluate("Date.now()")))
    expect(page.get_by_text("12 chats were imported.")).to_be_visible()
    assert page.locator(".thread").bounding_box() == before, "what is read does not move"
    page.clock.fast_forward(10_000)
    expect(page.get_by_text("12 chats were imported.")).to_have_count(0)


def test_a_chat_without_its_first_message_is_gone(chat, page):
    fill(chat, "About apples", "About pears")
    chat.do("Delete", chat.messages.first)
    expect(chat.messages).to_have_count(0)
    expect(page.locator(".entry a")).to_have_text(["About apples"])
    page.get_by_role("button", name="Undo").click()
    expect(chat.messages).to_have_count(2)


def test_a_file_that_is_none_says_so(chat, page, tmp_path):
    file = tmp_path / "bad.json"
    file.write_text('{"some": "thing"}')
    page.get_by_label("File with chats").set_input_files(file)
    expect(page.locator(".banner.bad")).to_be_visible()


def test_chats_on_the_server_are_seen_by_other_browsers(new_page, tmp_path, problems, models):
    problems.allow("ERR_|409")  # pages look for news while the server stops; both save the chat: it is merged
    with CorralProcess("-m", models / "llama-bpe.gguf", "-c", 2048, "-np", 2, "--chats", tmp_path) as server:
        first, second = [ChatPage(new_page(), server.url).open() for _ in range(2)]
        first.force("yes")
        first.ask("About apples")
        expect(second.page.get_by_role("link", name="About apples")).to_be_visible()
        second.page.get_by_role("link", name="About apples").click()
        expect(second.messages).to_have_count(2)
        second.ask("And pears?")
        expect(first.messages).to_have_count(4)
        first.page.reload()
        first.wait_until_ready()
        expect(first.messages).to_have_count(4)


def test_every_key_has_chats_of_its_own(new_page, tmp_path, problems, models):
    problems.allow("401|409|ERR_")
    options = ("-c", 2048, "--chats", tmp_path, "--api-key", "ada,bob")
    with CorralProcess("-m", models / "llama-bpe.gguf", *options) as server:
        pages = []
        for key in ("ada", "bob"):
            chat = ChatPage(new_page(), server.url)
            chat.page.goto(server.url)
            chat.page.get_by_label("API key").fill(key)
            chat.page.get_by_role("button", name="Use this key").click()
            chat.wait_until_ready()
            chat.force("yes")
            chat.ask(f"I am {key}.")
            pages.append(chat)
        for chat, title in zip(pages, ("I am ada.", "I am bob."), strict=True):
            chat.page.reload()
            chat.wait_until_ready()
            expect(chat.page.locator(".entry a")).to_have_text([title])


def test_chats_of_the_browser_can_be_moved_to_the_server(page, tmp_path, problems, models):
    problems.allow("ERR_|503|404")
    with CorralProcess("-m", models / "llama-bpe.gguf", "-c", 512) as server:
        chat = ChatPage(page, server.url).open()
        chat.force("yes")
        chat.ask("About apples")
    port = server.url.rsplit(":", 1)[1]  # what a browser keeps belongs to an address
    with CorralProcess("-m", models / "llama-bpe.gguf", "-c", 512, "--chats", tmp_path, "--port", port):
        chat.open()
        expect(page.get_by_text("1 chat is only in this browser.")).to_be_visible()
        page.get_by_role("button", name="Move to the server").click()
        expect(page.get_by_text("1 chat was moved to the server.")).to_be_visible()
        page.get_by_role("link", name="About apples").click()
        expect(chat.messages).to_have_count(2)
    assert list(tmp_path.rglob("*.json"))
