"""Files that are dropped anywhere on the page, or pasted: the page says what it can do with them."""

from __future__ import annotations

import base64

import pytest
from playwright.sync_api import Page, expect

from tests.browser.chat_page import ChatPage
from tests.browser.transfer import TRANSFER, png
from tests.system.process import CorralProcess


@pytest.fixture(scope="module")
def blind(models):
    with CorralProcess("-m", models / "llama-bpe.gguf", "-c", 512) as server:
        yield server


@pytest.fixture(scope="module")
def seeing(vision):
    model, projector = vision / "llama-bpe.gguf", vision / "mmproj-llava.gguf"
    with CorralProcess("-m", model, "--mmproj", projector, "-c", 512) as server:
        yield server


@pytest.fixture
def drop(page, tmp_path):
    """Have Chromium drop a file on something, as it does when a person lets go of one."""

    def dropped(target: str, name: str, content: bytes) -> None:
        file = tmp_path / name
        file.write_bytes(content)
        box = page.locator(target).bounding_box()
        at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
        data = {"items": [], "files": [str(file)], "dragOperationsMask": 1}
        session = page.context.new_cdp_session(page)
        for kind in ("dragEnter", "dragOver", "drop"):
            session.send("Input.dispatchDragEvent", {"type": kind, **at, "data": data})

    return dropped


def refusal(page: Page):
    return page.locator(".composer").get_by_role("alert")


@pytest.mark.parametrize(
    ("target", "name"),
    [(".composer", "red.png"), (".thread", "notes.pdf"), (".sidebar", "noise.mp3"), (".head", "some.bin")],
)
def test_a_model_for_text_says_what_it_does_not_take(page, blind, drop, target, name):
    chat = ChatPage(page, blind.url).open()
    drop(target, name, png() if name.endswith("png") else b"something\0")
    expect(refusal(page)).to_contain_text(name)
    assert page.url.startswith(blind.url), "the browser has not left the page to show the file"
    expect(page.locator(".composer.over")).to_have_count(0)
    chat.box.fill("so I write it")
    expect(refusal(page)).to_have_count(0)


@pytest.mark.parametrize("target", [".composer", ".thread"])
def test_a_model_that_sees_says_which_pictures_it_takes(page, seeing, drop, target):
    ChatPage(page, seeing.url).open()
    drop(target, "broken.png", b"not a picture")
    expect(refusal(page)).to_contain_text("broken.png")
    expect(refusal(page)).to_contain_text("PNG, JPEG")
    drop(target, "red.png", png())
    expect(page.locator(".composer img")).to_have_count(1)
    expect(refusal(page)).to_have_count(0)


@pytest.mark.parametrize("server", ["blind", "seeing"])
def test_a_pasted_file_is_added(page, request, server):
    chat = ChatPage(page, request.getfixturevalue(server).url).open()
    content = base64.b64encode(b"notes").decode()
    script = TRANSFER.replace('"picture.png"', '"notes.txt"').replace("image/png", "text/plain")
    page.evaluate(script, [chat.box.element_handle(), "paste", content])
    expect(page.get_by_role("list", name="Files of this message")).to_contain_text("notes.txt")


def test_dropped_text_is_written_into_the_message(page, blind):
    chat = ChatPage(page, blind.url).open()
    box = chat.box.bounding_box()
    at = {"x": box["x"] + 20, "y": box["y"] + box["height"] / 2}
    items = [{"mimeType": "text/plain", "data": "dragged words"}]
    session = page.context.new_cdp_session(page)
    for kind in ("dragEnter", "dragOver", "drop"):
        data = {"items": items, "dragOperationsMask": 1}
        session.send("Input.dispatchDragEvent", {"type": kind, **at, "data": data})
    expect(chat.box).to_have_value("dragged words")
