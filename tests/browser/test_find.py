"""The list of chats: what a search shows and where it leads, menus, and several chats at once."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.chat_file import CHATS, FILLER, chat_of, file_of
from tests.browser.chat_page import ChatPage
from tests.browser.look import PHONE, is_inside
from tests.system.process import CorralProcess


@pytest.fixture
def chat(page, corral) -> ChatPage:
    return filled(page, corral.url)


def filled(page: Page, url: str) -> ChatPage:
    chat = ChatPage(page, url).open()
    page.get_by_label("File with chats").set_input_files(file_of(*CHATS))
    expect(titles(page)).to_have_text(["Animals", "The zoo", "Trains"])
    return chat


def titles(page: Page):
    return page.locator(".entry a")


MARKED = """(name) => [...(CSS.highlights.get(name) ?? [])].map((range) => {
  const { top, bottom } = range.getBoundingClientRect();
  const frame = document.querySelector(".thread").getBoundingClientRect();
  return { text: range.toString(), isSeen: bottom > top && top >= frame.top && bottom <= frame.bottom };
})"""


def wait_for_mark(page: Page, text: str) -> None:
    """The place that is looked at says this, and can be seen."""
    page.wait_for_function(
        f"""(text) => {{
          const all = ({MARKED})("found-now");
          return all.length === 1 && all[0].text === text && all[0].isSeen;
        }}""",
        arg=text,
    )


def test_a_search_shows_the_words_around_it_and_marks_them(chat, page):
    page.get_by_label("Search chats").fill("ZEBRA")
    found = page.locator(".entry a")
    expect(found).to_have_count(2)
    expect(found.nth(0).locator(".found-title")).to_have_text("Animals")
    expect(found.nth(0).locator(".snippet")).to_have_text("Tell me of zebras.")
    expect(found.nth(1).locator(".snippet")).to_contain_text(
        re.compile("^There are lions, and a zebra called Max. .*…$")
    )
    expect(found.locator("mark")).to_have_text(["zebra", "zebra"])
    page.get_by_label("Search chats").fill("zoo")
    expect(found.locator("mark")).to_have_text(["zoo"])
    expect(found.locator(".snippet")).to_have_count(0)


SEARCH_AND_SAVE = """async () => {
  const { openLocalStore } = await import("/js/store.js");
  const store = await openLocalStore();
  const common = { createdAt: 1, updatedAt: 1, system: "", settings: {}, leaf: null, messages: {} };
  const chatOf = (id, title) => ({ id: id.repeat(32), title, ...common });
  await store.save(chatOf("a", "About apples"));
  const found = store.search("apples");
  await store.save(chatOf("b", "About pears"));
  return (await found).map(({ title }) => title);
}"""


def test_a_search_while_a_chat_is_saved(page, corral):
    ChatPage(page, corral.url).open()
    assert page.evaluate(SEARCH_AND_SAVE) == ["About apples"]


SHOWN_SO_FAR = """async () => {
  const { TextIndex } = await import("/js/text_index.js");
  const heads = ["a", "b", "c"].map((id) => ({ id, title: `About ${id}`, revision: id }));
  let goOn;
  const waiting = new Promise((resolve) => (goOn = resolve));
  const each = async (ids, visit) => {
    for (const [i, id] of ids.entries()) {
      if (i > 0) await waiting;
      visit(id, { messages: { [id]: { content: `So many Apples (${id})` } } });
    }
  };
  const shown = [];
  const show = (found) => (shown.push(found.map(({ title }) => title)), goOn());
  const found = await new TextIndex({ each }).search("apples (", heads, show);
  return [shown[0], found.map(({ snippet }) => snippet)];
}"""


def test_what_is_found_is_shown_while_other_chats_are_read(page, corral):
    ChatPage(page, corral.url).open()
    first, found = page.evaluate(SHOWN_SO_FAR)
    assert first == ["About a"]
    assert found == [f"So many Apples ({id})" for id in "abc"]


def test_the_list_and_enter_wait_for_what_is_found(page, corral):
    held: list[Route] = []
    page.route("**/js/text_index.js", lambda route: held.append(route))
    filled(page, corral.url)
    search = page.get_by_label("Search chats")
    search.fill("max")
    search.press("Enter")
    expect(titles(page)).to_have_text(["Animals", "The zoo", "Trains"])
    expect(page.locator(".found-title")).to_have_count(0)
    held.pop().continue_()
    expect(page.locator("h1")).to_have_text("The zoo")
    expect(page.locator(".found-title")).to_have_text(["The zoo"])
    expect(page.locator(".hits").get_by_role("status")).to_have_text("1 of 1")


SAID = """Some **bold** text, [bold](https://example.com) text and `bold text`; **two bold texts**.

```python
bold text
```

$bold text$ is a formula."""


def test_hits_are_counted_in_what_is_shown(chat, page):
    answer = chat_of(8, "Styles", "How is bold text written?", SAID)
    page.get_by_label("File with chats").set_input_files(file_of(answer))
    expect(page.locator("h1")).to_have_text("Styles")
    search, place = page.get_by_label("Search chats"), page.locator(".hits").get_by_role("status")
    search.fill("bold text")
    expect(place).to_have_text("6 hits")
    for n in range(1, 7):
        search.press("Enter")
        expect(place).to_have_text(f"{n} of 6")
        wait_for_mark(page, "bold text")
    for text in ("**", "copy", "python"):  # marks of Markdown, a button, the name of a language
        search.fill(text)
        expect(place).to_have_count(0)


def test_one_goes_from_hit_to_hit_and_into_the_next_chat(chat, page):
    search = page.get_by_label("Search chats")
    search.fill("zebra")
    page.get_by_role("link", name="Animals").click()
    place = page.locator(".hits").get_by_role("status")
    expect(place).to_have_text("1 of 3")
    wait_for_mark(page, "zebra")
    page.get_by_role("button", name="Next hit").click()
    expect(place).to_have_text("2 of 3")
    page.get_by_role("button", name="Next hit").click()
    expect(place).to_have_text("3 of 3")
    wait_for_mark(page, "Zebra")
    search.press("Enter")
    expect(page.locator("h1")).to_have_text("The zoo")
    expect(place).to_have_text("1 of 1")
    wait_for_mark(page, "zebra")
    search.press("Shift+Enter")
    expect(page.locator("h1")).to_have_text("Animals")
    expect(place).to_have_text("3 of 3")
    page.get_by_role("button", name="Previous hit").click()
    expect(place).to_have_text("2 of 3")
    page.get_by_role("button", name="End the search").click()
    expect(page.locator(".hits")).to_have_count(0)
    expect(titles(page)).to_have_count(3)
    assert page.evaluate("CSS.highlights.size") == 0


def test_a_hit_far_away_is_drawn_and_brought_to_the_middle(chat, page):
    answer = f"{FILLER}\n\n```python\nprint('x')\n```\n"
    contents = [answer if i % 2 else f"Question {i}" for i in range(200)]
    contents[61] = f"{FILLER}\n\n- and the *needle* is here\n\n{FILLER}"
    page.get_by_label("File with chats").set_input_files(file_of(chat_of(9, "Hay", *contents)))
    expect(page.locator("h1")).to_have_text("Hay")
    page.get_by_label("Search chats").fill("needle")
    page.get_by_label("Search chats").press("Enter")
    expect(page.locator(".hits").get_by_role("status")).to_have_text("1 of 1")
    wait_for_mark(page, "needle")
    expect(page.locator(".markdown em", has_text="needle")).to_be_in_viewport()


def test_hits_on_a_phone(new_page, corral):
    page = new_page(**PHONE)
    ChatPage(page, corral.url).open()
    page.get_by_label("File with chats").set_input_files(file_of(*CHATS))
    page.get_by_role("button", name="Chats", exact=True).tap()
    page.get_by_label("Search chats").fill("zebra")
    page.get_by_role("link", name="Animals").tap()
    wait_for_mark(page, "zebra")
    page.get_by_role("button", name="Next hit").tap()
    page.get_by_role("button", name="Next hit").tap()
    wait_for_mark(page, "Zebra")
    assert is_inside(page.locator(".hits"))


def test_searches_on_the_server_have_snippets_too(page, tmp_path, problems, models):
    problems.allow("ERR_")
    with CorralProcess("-m", models / "llama-bpe.gguf", "-c", 512, "--chats", tmp_path) as server:
        filled(page, server.url)
        page.get_by_label("Search chats").fill("max")
        expect(page.locator(".entry .snippet")).to_contain_text("are lions, and a zebra called Max.")
        expect(page.locator(".entry mark")).to_have_text(["Max"])


def test_a_menu_is_steered_with_keys(chat, page):
    page.get_by_label("Search chats").focus()
    page.keyboard.press("Tab")
    expect(titles(page).first).to_be_focused()
    page.keyboard.press("Tab")
    more = page.locator(".entry").first.get_by_role("button", name="More")
    expect(more).to_be_focused()
    page.keyboard.press("Enter")
    menu = page.get_by_role("dialog", name="Animals")
    expect(menu.get_by_role("button", name="Rename")).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(menu.get_by_role("button", name="Delete")).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(menu.get_by_role("button", name="Pin")).to_be_focused()
    page.keyboard.press("Escape")
    expect(menu).to_have_count(0)
    expect(more).to_be_focused()


def test_a_menu_stands_at_its_button_and_a_click_beside_it_closes_it(chat, page):
    menu = chat.open_menu("The zoo")
    entry, box = page.locator(".entry", has_text="The zoo").bounding_box(), menu.bounding_box()
    assert entry
    assert box
    assert abs(box["y"] - entry["y"] - entry["height"]) < 12
    assert is_inside(menu)
    page.mouse.click(900, 500)
    expect(menu).to_have_count(0)


def test_a_menu_on_a_touch_screen(new_page, corral):
    page = new_page(**PHONE)
    chat = ChatPage(page, corral.url).open()
    page.get_by_label("File with chats").set_input_files(file_of(*CHATS))
    page.get_by_role("button", name="Chats", exact=True).tap()
    more = page.locator(".entry", has_text="The zoo").get_by_role("button", name="More")
    box = more.bounding_box()
    assert box
    assert min(box["width"], box["height"]) >= 44
    more.tap()
    menu = page.get_by_role("dialog", name="The zoo")
    expect(menu.get_by_role("button", name="Rename")).to_be_visible()
    assert is_inside(menu)
    menu.get_by_role("button", name="Rename").tap()
    page.get_by_label("Chat title").fill("Lions")
    page.get_by_label("Chat title").press("Enter")
    expect(titles(page)).to_have_text(["Lions", "Animals", "Trains"])
    assert chat.page.evaluate("document.documentElement.scrollWidth") <= 360


def select(page: Page, *names: str) -> None:
    for name in names:
        page.locator(".choice", has_text=name).click()


def test_several_chats_are_deleted_at_once_and_come_back(chat, page):
    titles(page).first.click()
    chat.choose("Animals", "Select several")
    tools = page.get_by_role("group", name="Selected chats")
    expect(tools.get_by_role("status")).to_have_text("1 selected")
    select(page, "Trains")
    tools.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("2 chats were deleted.")).to_be_visible()
    expect(titles(page)).to_have_text(["The zoo"])
    expect(chat.messages).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(titles(page)).to_have_text(["Animals", "The zoo", "Trains"])
    expect(page.locator("h1")).to_have_text("Animals")


def test_several_chats_are_moved_at_once_and_back(chat, page):
    chat.move("Trains", "Old")
    expect(page.locator(".folder .entry")).to_have_text(["Trains"])
    chat.choose("The zoo", "Select several")
    select(page, "Trains")
    page.get_by_role("group", name="Selected chats").get_by_role("button", name="Move").click()
    dialog = page.get_by_role("dialog", name="Move 2 chats to a folder")
    dialog.get_by_label("Folder").fill("Travel")
    dialog.get_by_role("button", name="Move", exact=True).click()
    expect(page.get_by_text("2 chats are in Travel now.")).to_be_visible()
    expect(page.locator(".folder .entry")).to_have_text(["The zoo", "Trains"])
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".folder summary")).to_have_text("Old")
    expect(page.locator(".folder .entry")).to_have_text(["Trains"])
    expect(page.locator(".chats h2")).to_have_text(["Earlier"])


def test_an_open_chat_that_is_moved_and_back_keeps_its_time(chat, page):
    titles(page).nth(1).click()
    expect(page.locator("h1")).to_have_text("The zoo")
    chat.move("The zoo", "Travel")
    expect(page.locator(".folder .entry")).to_have_text(["The zoo"])
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".folder")).to_have_count(0)
    expect(page.locator(".chats h2")).to_have_text(["Earlier"])
    chat.set("System prompt", "Be brief.")
    expect(page.locator(".chats h2")).to_have_text(["Today", "Earlier"])


def test_chats_that_are_selected_with_keys_are_exported(chat, page, tmp_path):
    chat.choose("Animals", "Select several")
    first = page.get_by_role("checkbox", name="Animals")
    expect(first).to_be_checked()
    first.press("Space")
    expect(first).not_to_be_checked()
    first.press("Space")
    page.get_by_role("checkbox", name="Trains").click(modifiers=["Shift"])
    tools = page.get_by_role("group", name="Selected chats")
    expect(tools.get_by_role("status")).to_have_text("3 selected")
    tools.get_by_role("button", name="Select none").click()
    expect(tools.get_by_role("button", name="Export")).to_be_disabled()
    tools.get_by_role("button", name="Select all").click()
    page.get_by_role("checkbox", name="The zoo").press("Space")
    with page.expect_download() as download:
        tools.get_by_role("button", name="Export").press("Enter")
    file = tmp_path / "chats.json"
    download.value.save_as(file)
    assert [each["title"] for each in json.loads(file.read_text())["chats"]] == ["Animals", "Trains"]
    expect(page.locator(".choice")).to_have_count(0)
    chat.choose("Trains", "Select several")
    page.keyboard.press("Escape")
    expect(page.locator(".choice")).to_have_count(0)
    expect(titles(page)).to_have_count(3)
