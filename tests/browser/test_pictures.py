"""Pictures in the chat page, with a tiny model that sees: by upload, paste and drop."""

from __future__ import annotations

import base64

import pytest
from playwright.sync_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.transfer import TRANSFER, png
from tests.system.process import CorralProcess


@pytest.fixture(scope="module")
def seeing(vision):
    with CorralProcess(
        "-m", vision / "llama-bpe.gguf", "--mmproj", vision / "mmproj-llava.gguf", "-c", 2048, "-np", 2
    ) as server:
        yield server


@pytest.fixture
def chat(page, seeing) -> ChatPage:
    opened = ChatPage(page, seeing.url).open()
    opened.set("Max tokens", 4)
    return opened


@pytest.mark.parametrize("way", ["upload", "paste", "drop"])
def test_a_picture_is_seen_and_sent(chat, page, way):
    bodies = []
    page.on("request", lambda r: bodies.append(r.post_data_json) if "chat/completions" in r.url else None)
    if way == "upload":
        file = {"name": "red.png", "mimeType": "image/png", "buffer": png()}
        page.get_by_label("Files", exact=True).set_input_files(file)
    else:
        box = chat.box.element_handle()
        page.evaluate(TRANSFER, [box, way, base64.b64encode(png()).decode()])
    expect(page.locator(".composer img")).to_have_count(1)
    chat.say("What is this?")
    chat.wait_for_end()
    expect(page.locator(".composer img")).to_have_count(0)
    expect(chat.messages.first.locator("img")).to_have_count(1)
    kinds = [part["type"] for part in bodies[0]["messages"][0]["content"]]
    assert sorted(kinds) == ["image_url", "text"]
    assert bodies[0]["messages"][0]["content"][0]["image_url"]["url"].startswith("data:image/")
    page.reload()
    chat.wait_until_ready()
    expect(chat.messages.first.locator("img")).to_have_count(1)


def test_a_picture_can_be_taken_out_again(chat, page):
    files = [{"name": f"{c}.png", "mimeType": "image/png", "buffer": png(c)} for c in ("red", "blue")]
    page.get_by_label("Files", exact=True).set_input_files(files)
    expect(page.locator(".composer img")).to_have_count(2)
    page.locator(".composer").get_by_role("button", name="Remove").first.click()
    expect(page.locator(".composer img")).to_have_count(1)


def test_what_is_no_file_to_read_is_refused(chat, page):
    file = {"name": "notes.bin", "mimeType": "application/octet-stream", "buffer": b"\0\1\2"}
    page.get_by_label("Files", exact=True).set_input_files(file)
    expect(page.locator(".composer").get_by_role("alert")).to_contain_text("notes.bin")
    expect(page.locator(".composer img")).to_have_count(0)
