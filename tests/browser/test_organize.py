"""Finding things: the palette, pins, folders, searches among many chats; prompts and system prompts."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.look import PHONE, is_inside
from tests.system.process import CorralProcess

N_MANY = 1_000

FILL = """async (n) => {
  const hex = (i) => i.toString(16).padStart(32, "0");
  const chatOf = (i) => {
    const id = hex(n + i);
    const content = `about number${i}x`;
    const message = { id, parent: null, role: "user", content, state: "done", createdAt: i };
    return { id: hex(i), title: `Chat ${i}`, createdAt: i, updatedAt: i, revision: hex(i),
             system: "", settings: {}, leaf: id, messages: { [id]: message } };
  };
  const { openDatabase } = await import("/js/records.js");
  const database = await (await openDatabase()).open();
  const transaction = database.transaction(["heads", "chats"], "readwrite");
  for (let i = 1; i <= n; i++) {
    const { id, title, createdAt, updatedAt, revision, ...others } = chatOf(i);
    const head = { id, title, createdAt, updatedAt, revision };
    transaction.objectStore("heads").put(head);
    transaction.objectStore("chats").put({ ...head, ...others });
  }
  await new Promise((resolve) => (transaction.oncomplete = resolve));
}"""


@pytest.fixture
def chat(page, corral) -> ChatPage:
    return ChatPage(page, corral.url).open()


def fill(chat: ChatPage, *texts: str) -> None:
    """A chat for each text."""
    chat.force("yes")
    chat.use_for_new_chats()
    for text in texts:
        chat.page.get_by_role("button", name="New chat", exact=True).click()
        chat.ask(text)
    chat.page.get_by_role("button", name="Close the settings").click()


def open_palette(page):
    page.keyboard.press("Control+k")
    palette = page.get_by_role("dialog", name="Commands and chats")
    expect(palette.get_by_role("option").first).to_be_visible()
    return palette


def test_the_palette_runs_commands_and_opens_chats(chat, page):
    fill(chat, "About apples", "About pears")
    palette = open_palette(page)
    expect(palette.get_by_label("Command or chat")).to_be_focused()
    page.keyboard.type("apples")
    expect(palette.get_by_role("option")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(palette).to_have_count(0)
    expect(chat.messages.first).to_contain_text("About apples")
    palette = open_palette(page)
    page.keyboard.type("chat new")
    expect(palette.get_by_role("option", selected=True)).to_contain_text("New chat")
    page.keyboard.press("Enter")
    expect(chat.messages).to_have_count(0)


def test_the_palette_is_steered_with_keys(chat, page):
    palette = open_palette(page)
    names = palette.get_by_role("option").all_inner_texts()
    page.keyboard.press("ArrowDown")
    expect(palette.get_by_role("option", selected=True)).to_have_text(names[1].replace("\n", ""))
    chosen = palette.get_by_label("Command or chat").get_attribute("aria-activedescendant")
    assert chosen == palette.get_by_role("option", selected=True).get_attribute("id")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    expect(palette.get_by_role("option", selected=True)).to_have_text(names[0].replace("\n", ""))
    page.keyboard.type("nothing like this")
    expect(palette.get_by_text("Nothing found.")).to_be_visible()
    page.keyboard.press("Enter")
    expect(palette).to_have_count(0)
    expect(chat.box).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_palette_on_a_phone(new_page, corral, scheme):
    page = ChatPage(new_page(**PHONE, color_scheme=scheme), corral.url).open().page
    palette = open_palette(page)
    assert is_inside(palette)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_pinned_chats_come_first(chat, page):
    fill(chat, "About apples", "About pears")
    chat.choose("About apples", "Pin")
    expect(page.locator(".chats h2")).to_have_text(["Pinned", "Today"])
    expect(page.locator(".entry a")).to_have_text(["About apples", "About pears"])
    page.reload()
    chat.wait_until_ready()
    expect(page.locator(".chats h2")).to_have_text(["Pinned", "Today"])
    chat.choose("About apples", "Unpin")
    expect(page.locator(".chats h2")).to_have_text(["Today"])


def test_folders(chat, page):
    fill(chat, "About apples", "About pears", "About cars")
    for title in ("About apples", "About pears"):
        chat.move(title, "Fruit")
        expect(page.locator(".folder .entry", has_text=title)).to_be_visible()
    page.locator(".folder summary", has_text="Fruit").click()
    expect(page.locator(".folder .entry").first).to_be_hidden()
    page.reload()
    chat.wait_until_ready()
    expect(page.locator(".entry a", has_text="About cars")).to_be_visible()
    expect(page.locator(".folder .entry").first).to_be_hidden()
    page.locator(".folder summary", has_text="Fruit").click()
    chat.move("About pears", "")
    expect(page.locator(".folder .entry")).to_have_count(1)


def test_pins_and_folders_are_exported_and_imported(chat, page, new_page, tmp_path):
    fill(chat, "About apples")
    chat.choose("About apples", "Pin")
    expect(page.get_by_role("heading", name="Pinned")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export all chats").click()
    file = tmp_path / "chats.json"
    download.value.save_as(file)
    other = ChatPage(new_page(), chat.url).open()
    other.page.get_by_label("File with chats").set_input_files(file)
    expect(other.page.get_by_role("heading", name="Pinned")).to_be_visible()


def test_pins_and_folders_on_the_server(new_page, tmp_path, problems, models):
    problems.allow("ERR_")  # pages look for news while the server stops
    with CorralProcess("-m", models / "llama-bpe.gguf", "-c", 512, "--chats", tmp_path) as server:
        first, second = [ChatPage(new_page(), server.url).open() for _ in range(2)]
        fill(first, "About apples")
        first.move("About apples", "Fruit")
        expect(second.page.locator(".folder .entry", has_text="About apples")).to_be_visible()
        first.choose("About apples", "Pin")
        expect(second.page.get_by_role("heading", name="Pinned")).to_be_visible()


def test_searches_among_many_chats_read_them_once(chat, page):
    page.evaluate(FILL, N_MANY)
    page.reload()
    chat.wait_until_ready()
    expect(page.locator(".entry a")).to_have_count(100)
    page.get_by_role("button", name="Show more").click()
    expect(page.locator(".entry a")).to_have_count(200)
    search = page.get_by_label("Search chats")
    search.fill("number77x")
    expect(page.locator(".found-title")).to_have_text(["Chat 77"])
    page.evaluate(
        """() => {
             window.nReads = 0;
             const { getAll, get } = IDBObjectStore.prototype;
             const count = (read) => function (...given) { nReads += 1; return read.apply(this, given); };
             Object.assign(IDBObjectStore.prototype, { getAll: count(getAll), get: count(get) });
           }"""
    )
    for i in (99, 999):
        search.fill(f"NUMBER{i}X")
        expect(page.locator(".found-title")).to_have_text([f"Chat {i}"])
    assert page.evaluate("nReads") == 0
    chat.force("yes")
    chat.ask("About number1001x")
    search.fill("number1001x")
    expect(page.locator(".found-title")).to_have_text(["About number1001x"])


def new_prompt(page, name: str, text: str, kind: str = "message") -> None:
    dialog = page.locator("dialog.prompts")
    dialog.get_by_role("button", name="New prompt").click()
    dialog.get_by_label("Name", exact=True).fill(name)
    dialog.get_by_label("Text", exact=True).fill(text)
    dialog.get_by_label("Use as").select_option(kind)
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("button", name=f"Edit {name}")).to_be_visible()


def test_a_prompt_asks_for_its_variables(chat, page):
    page.get_by_role("button", name="Prompts", exact=True).click()
    new_prompt(page, "Explain", "Explain {{topic}} to {{ who }}. Only {{topic}}.")
    page.keyboard.press("Escape")
    chat.box.fill("Please.")
    open_palette(page)
    page.keyboard.type("expl")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Explain")
    expect(dialog.get_by_label("topic", exact=True)).to_be_focused()
    expect(dialog.locator("textarea")).to_have_count(2)
    dialog.get_by_label("topic", exact=True).fill("{{who}} & <b>tides</b>")
    dialog.get_by_label("who", exact=True).fill("$& a child")
    dialog.get_by_role("button", name="Insert").click()
    filled = "Explain {{who}} & <b>tides</b> to $& a child. Only {{who}} & <b>tides</b>."
    expect(chat.box).to_have_value(f"Please.\n{filled}")
    expect(chat.box).to_be_focused()


def test_the_empty_library_is_a_sentence(page, chat):
    page.get_by_role("button", name="Prompts", exact=True).click()
    text = page.locator("dialog.prompts li", has=page.locator("code"))
    expect(text).to_be_visible()
    assert "often. {{topic}} in" in text.evaluate("(each) => each.innerText")


def test_prompts_are_kept_changed_and_deleted(chat, page):
    page.on("dialog", lambda dialog: dialog.accept())
    prompts = page.get_by_role("button", name="Prompts", exact=True)
    prompts.click()
    new_prompt(page, "Hello", "Say hello.")
    page.reload()
    chat.wait_until_ready()
    prompts.click()
    page.get_by_role("button", name="Edit Hello").click()
    page.locator("dialog").get_by_label("Text", exact=True).fill("Say goodbye.")
    page.locator("dialog").get_by_role("button", name="Save").click()
    page.get_by_role("button", name="Hello Say goodbye.").click()
    expect(chat.box).to_have_value("Say goodbye.")
    prompts.click()
    page.get_by_role("button", name="Delete Hello").click()
    expect(page.get_by_role("button", name="Edit Hello")).to_have_count(0)


def test_a_system_prompt_is_a_preset(chat, page):
    chat.set("System prompt", "You are a pirate.")
    page.get_by_role("button", name="Keep as a prompt").click()
    page.locator("dialog").get_by_label("Name", exact=True).fill("Pirate")
    page.locator("dialog").get_by_role("button", name="Save").click()
    page.keyboard.press("Escape")
    chat.set("System prompt", "")
    page.get_by_role("button", name="Choose from the prompts").click()
    page.get_by_role("button", name="Pirate system You are a pirate.").click()
    expect(page.get_by_label("System prompt", exact=True)).to_have_value("You are a pirate.")


@pytest.mark.parametrize("text", ["{}", "7", '[{"id": 1}]', "[null]", "not JSON"])
def test_a_broken_library_is_an_empty_one(chat, page, text):
    page.evaluate("(text) => localStorage.setItem('corral.prompts', text)", text)
    page.get_by_role("button", name="Prompts", exact=True).click()
    expect(page.get_by_role("button", name="New prompt")).to_be_visible()
