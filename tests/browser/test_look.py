"""How the chat page looks and feels: sizes, themes, keyboard, labels, long conversations, first load."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest
from playwright.sync_api import FilePayload, expect

from tests.browser.chat_page import ChatPage
from tests.browser.contrast import CONTRASTS
from tests.browser.look import PHONE, is_inside

FIRST_LOAD_BYTES = 110_000
MIN_CONTRAST = 4.5  # WCAG 2.2, level AA
ANSWER = (
    "Some **text** with `code`, and\n\n```python\nprint('hello')\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
)


@pytest.fixture
def chat(page, corral) -> ChatPage:
    return ChatPage(page, corral.url).open()


def test_the_first_load_is_small_and_from_this_server(page, corral):
    finished = []
    page.on("requestfinished", lambda request: finished.append(request))
    chat = ChatPage(page, corral.url).open()
    page.wait_for_load_state("networkidle")
    sizes = [request.sizes() for request in finished]
    total = sum(size["responseBodySize"] + size["responseHeadersSize"] for size in sizes)
    assert 0 < total < FIRST_LOAD_BYTES, total
    assert chat.page.evaluate("performance.getEntriesByName('first-contentful-paint').length") == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_is_the_systems_until_one_chooses(new_page, corral, scheme):
    chat = ChatPage(new_page(color_scheme=scheme), corral.url).open()
    assert is_dark(chat) == (scheme == "dark")
    button = chat.page.get_by_role("button", name="Light, dark or system theme")
    seen = []
    for _ in range(3):
        button.click()
        seen.append(is_dark(chat))
    assert seen == [False, True, scheme == "dark"]
    button.click()
    button.click()
    chat.page.reload()
    chat.wait_until_ready()
    assert is_dark(chat), "it is remembered"


def test_a_new_chat_says_which_model_it_is_and_what_one_can_do(chat, page):
    identity = page.locator(".identity")
    expect(identity).to_have_text(
        re.compile(r"^tiny llama-bpe · F32 · [\d.]+ [kM]B · 4,096 tokens of context · runs on")
    )
    expect(page.locator(".head .model")).to_have_text(re.compile("^tiny llama-bpe · "))
    cards = page.locator(".cards").get_by_role("button")
    expect(cards).to_have_count(4)
    with page.expect_file_chooser():
        cards.filter(has_text="Ask about a file").click()
    cards.filter(has_text="Keep your prompts").click()
    expect(page.get_by_role("dialog", name="Prompts")).to_be_visible()
    page.keyboard.press("Escape")
    cards.filter(has_text="See all commands").click()
    expect(page.get_by_role("dialog", name="Commands and chats")).to_be_visible()
    page.keyboard.press("Escape")
    cards.filter(has_text="Choose how it answers").click()
    expect(page.get_by_label("Settings of this chat")).to_be_visible()


OPACITY = "(each) => getComputedStyle(each).opacity"


def test_a_conversation_is_calm(chat, page):
    chat.force("yes")
    page.get_by_role("button", name="Close the settings").click()
    chat.ask("Is it so? " + "Tell me more. " * 40)
    chat.ask("Really?")
    first, answer, _, last = chat.messages.all()
    frame = page.locator(".thread > div").bounding_box()
    said = first.locator(".said").bounding_box()
    assert frame
    assert said
    assert said["width"] <= 0.8 * frame["width"]
    assert said["x"] + said["width"] == pytest.approx(frame["x"] + frame["width"], abs=1), "at the right"
    expect(last.locator(".author")).to_have_text("tiny llama-bpe")
    expect(last.locator(".timings")).to_have_text(re.compile(r"tokens?·[\d.]+ s$|tokens? *[\d.]+ s$"))
    assert last.locator(".actions").evaluate(OPACITY) == "1"
    assert answer.locator(".actions").evaluate(OPACITY) == "0"
    answer.hover()
    assert answer.locator(".actions").evaluate(OPACITY) == "1"
    chat.box.hover()
    answer.get_by_role("button", name="Copy").focus()
    assert answer.locator(".actions").evaluate(OPACITY) == "1"


HEIGHT = "(each) => each.getBoundingClientRect().height"


def test_the_line_below_an_answer_has_its_place_before_it_is_there(chat, page):
    chat.never_end()
    page.get_by_role("button", name="Close the settings").click()
    chat.say("Go on.")
    chat.wait_for_words()
    before = chat.last.locator("footer").evaluate(HEIGHT)
    page.get_by_role("button", name="Stop", exact=True).click()
    chat.wait_for_end()
    assert chat.last.locator("footer").evaluate(HEIGHT) == before > 0


def test_what_is_below_the_list_has_words(chat, page):
    foot = page.locator(".sidebar-foot")
    for text in ("Import chats", "Export all chats", "Light, dark or system theme", "Monitor"):
        expect(foot.get_by_text(text, exact=True)).to_be_visible()


def test_the_context_in_use_is_beside_the_button_to_send(chat, page):
    gauge = page.get_by_role("button", name=re.compile("^Context in use: [0-9]+ % of 4,096 tokens"))
    expect(gauge).to_have_count(0)
    chat.force("yes")
    chat.ask("Hello")
    gauge.click()
    expect(page.get_by_role("dialog", name="Cost and context")).to_be_visible()


def test_the_text_of_a_message_has_the_whole_width_on_a_phone(new_page, corral):
    chat = ChatPage(new_page(**PHONE), corral.url).open()
    composer, box = chat.page.locator(".composer").bounding_box(), chat.box.bounding_box()
    assert composer
    assert box
    assert box["width"] > 0.9 * composer["width"]
    for name in ("Prompts", "Add files", "Tools"):
        button = chat.page.locator(".composer").get_by_role("button", name=name, exact=True)
        expect(button).to_contain_text(name)
        assert is_inside(button)


def is_dark(chat: ChatPage) -> bool:
    color = chat.page.evaluate("getComputedStyle(document.body).backgroundColor")
    red, green, blue = [int(part) for part in color.strip("rgb()").split(",")[:3]]
    return red + green + blue < 3 * 128


def test_the_banner_of_a_lost_server_stands_upright(page, corral, problems):
    problems.allow("ERR_")
    page.route("**/props", lambda route: route.abort())
    page.goto(corral.url)
    banner = page.locator(".banner.down")
    expect(banner).to_be_visible()
    assert banner.evaluate("(each) => getComputedStyle(each).rotate") == "none"


BANNERS = """(kinds) => {
  const place = document.querySelector("main");
  const style = (kind) => {
    const banner = Object.assign(document.createElement("p"), { className: `banner ${kind}` });
    place.prepend(banner);
    const computed = getComputedStyle(banner);
    const found = Object.fromEntries([...computed].map((name) => [name, computed[name]]));
    banner.remove();
    return found;
  };
  const plain = style("");
  return kinds.flatMap((kind) => {
    const found = style(kind);
    const differing = Object.keys(found).filter((name) => found[name] !== plain[name]);
    const others = differing.filter((name) => !/color|fill|stroke/.test(name));
    return others.map((name) => `${kind}: ${name} is ${found[name]}`);
  });
}"""


def test_banners_differ_in_nothing_but_their_colours(chat, page):
    kinds = ["connecting", "loading", "ready", "down", "locked", "info", "warn", "bad"]
    assert page.evaluate(BANNERS, kinds) == []


def test_code_of_an_answer_has_the_size_that_its_own_style_says(chat):
    chat.force(ANSWER)
    chat.ask("Show me some code.")
    sizes = chat.last.evaluate(
        """(message) => ["p", ".code", "pre"].map((each) => {
             return parseFloat(getComputedStyle(message.querySelector(`.markdown ${each}`)).fontSize);
           })"""
    )
    assert sizes == [16, 16, 14]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_placeholders_can_be_read(new_page, corral, scheme):
    chat = ChatPage(new_page(color_scheme=scheme), corral.url).open()
    chat.open_settings()
    contrasts = chat.page.evaluate(CONTRASTS)
    assert len(contrasts) >= 3
    assert all(contrast >= MIN_CONTRAST for contrast in contrasts.values()), contrasts


def test_a_phone(new_page, corral):
    chat = ChatPage(new_page(**PHONE), corral.url).open()
    page = chat.page
    expect(page.get_by_label("Search chats")).to_be_hidden()
    expect(chat.box, "its keyboard would hide half of the page").not_to_be_focused()
    chat.force(ANSWER)
    page.get_by_role("button", name="Close the settings").tap()
    chat.box.fill("Hello from a phone, with " + "a_very_long_word" * 20)
    chat.box.press("Enter")
    expect(chat.box, "its keyboard has no other way to begin a line").to_have_value(re.compile(r"\n$"))
    page.get_by_role("button", name="Send", exact=True).tap()
    chat.wait_for_end()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360, "nothing sticks out"
    page.get_by_role("button", name="Chats", exact=True).tap()
    expect(page.get_by_label("Search chats")).to_be_visible()
    page.get_by_role("button", name="New chat", exact=True).tap()
    expect(page.get_by_label("Search chats")).to_be_hidden()
    expect(chat.messages).to_have_count(0)


def test_all_of_it_with_the_keyboard(chat, page):
    page.route("**/v1/chat/completions", lambda route: None)  # answers that are waited for
    stop = page.get_by_role("button", name="Stop", exact=True)
    expect(chat.box).to_be_focused()
    page.keyboard.press("Alt+s")
    panel = page.get_by_label("Settings of this chat")
    expect(panel).to_be_visible()
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()
    chat.box.focus()
    page.keyboard.type("line one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("line two")
    expect(chat.box).to_have_value("line one\nline two")
    page.keyboard.press("Enter")
    expect(chat.messages).to_have_count(2)
    expect(stop).to_be_visible()
    page.keyboard.press("Escape")
    chat.wait_for_end()
    page.keyboard.press("Alt+r")
    expect(chat.last.locator(".alternatives")).to_have_text("2 / 2")
    expect(stop).to_be_visible()
    page.keyboard.press("Escape")
    chat.wait_for_end()
    page.keyboard.press("Alt+n")
    expect(chat.messages).to_have_count(0)
    expect(page.locator(".entry a")).to_have_count(1)
    page.keyboard.press("Alt+k")
    expect(page.get_by_label("Search chats")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator(".entry a")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator(".entry").get_by_role("button", name="More")).to_be_focused()
    page.keyboard.press("Alt+/")
    expect(page.get_by_role("dialog")).to_contain_text("new chat")


def test_escape_closes_the_list_of_keys_and_nothing_else(chat, page):
    page.route("**/v1/chat/completions", lambda route: None)  # an answer that is waited for
    chat.say("Hello")
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_visible()
    page.keyboard.press("Alt+/")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(chat.box).to_be_focused()
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_visible()
    page.keyboard.press("Escape")
    chat.wait_for_end()
    expect(chat.last).to_contain_text("Stopped.")


@pytest.mark.parametrize("where", ["Search chats", "Import chats", "Your message"])
@pytest.mark.parametrize("way", ["Escape", "Enter"])
def test_a_closed_list_of_keys_returns_the_focus(chat, page, where, way):
    page.get_by_label(where).first.focus()
    page.keyboard.press("Alt+/")
    expect(page.get_by_role("dialog").get_by_role("button", name="Close")).to_be_focused()
    page.keyboard.press(way)
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_label(where).first).to_be_focused()


@pytest.mark.parametrize("way", ["Escape", "Close the settings"])
def test_closed_settings_return_the_focus(chat, page, way):
    chat.box.focus()
    page.keyboard.press("Alt+s")
    page.get_by_label("Temperature", exact=True).focus()
    if way == "Escape":
        page.keyboard.press("Escape")
    else:
        page.get_by_role("button", name=way).press("Enter")
    expect(page.get_by_label("Settings of this chat")).to_have_count(0)
    expect(chat.box).to_be_focused()


def test_everything_has_a_name(chat, page):
    """What a screen reader would say of all that can be used."""
    chat.force("yes")
    chat.ask("Hello")
    nameless = page.evaluate(
        """() =>
           [...document.querySelectorAll("button, a, input, select, textarea, [role]")].filter((each) => {
             if (each.hidden || !each.checkVisibility()) return false;
             const labels = [...(each.labels ?? [])].map((label) => label.textContent).join("");
             return !(each.getAttribute("aria-label") || labels || each.textContent).trim();
           }).map((each) => each.outerHTML.slice(0, 120))"""
    )
    assert nameless == []
    expect(page.get_by_role("log", name="Conversation")).to_be_visible()
    assert page.locator("html").get_attribute("lang") == "en"


HEADINGS = """() => {
  const all = [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")];
  return all.filter((each) => each.checkVisibility()).map(({ tagName }) => +tagName[1]);
}"""


def test_no_level_of_headings_is_left_out(chat, page):
    chat.force("yes")
    chat.ask("Hello")
    levels = page.evaluate(HEADINGS)
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels)), levels


def test_the_focus_of_the_list_is_seen_whole(chat, page):
    chat.force("yes")
    chat.ask("Hello")
    page.get_by_label("Search chats").focus()
    page.keyboard.press("Tab")
    expect(page.locator(".entry a")).to_be_focused()
    style = "getComputedStyle(document.activeElement)"
    outline = page.evaluate(f"[parseFloat({style}.outlineOffset), parseFloat({style}.outlineWidth)]")
    assert sum(outline) <= 0, "the list cuts what is outside of its entries"


def test_an_editor_that_is_left_gives_the_focus_back(chat, page):
    chat.force("yes")
    chat.ask("Hello")
    chat.do("Edit")
    expect(chat.last.get_by_label("The message")).to_be_focused()
    page.keyboard.press("Escape")
    expect(chat.last.locator(".actions button").first).to_be_focused()


def conversation(n: int, answer: str, **last: object) -> str:
    """A file with a chat of n messages; `last` are fields of the last one."""
    ids = [f"{i:032x}" for i in range(n)]
    messages: dict[str, dict[str, Any]] = {
        id: {
            "id": id,
            "parent": ids[i - 1] if i else None,
            "role": "assistant" if i % 2 else "user",
            "content": f"{answer} number {i}" if i % 2 else f"Question {i}?",
            "state": "done",
            "createdAt": i,
        }
        for i, id in enumerate(ids)
    }
    messages[ids[-1]].update(last)
    chat = {
        **{"id": f"{n:032x}", "title": f"{n} messages", "createdAt": 1, "updatedAt": 1},
        **{"system": "", "settings": {}, "leaf": ids[-1], "messages": messages},
    }
    return json.dumps({"format": "corral-chats", "version": 1, "chats": [chat]})


SCROLL = """async () => {
  const thread = document.querySelector(".thread");
  const isLaidOut = (message) => message.firstElementChild.checkVisibility({ contentVisibilityAuto: true });
  let mutations = 0;
  let laid_out = 0; // at a time
  const observer = new MutationObserver((list) => (mutations += list.length));
  thread.scrollTop = 0;
  await new Promise(requestAnimationFrame);
  observer.observe(thread, { childList: true, subtree: true, characterData: true });
  for (let i = 0; i < 120; i++) {
    thread.scrollTop += thread.scrollHeight / 120;
    await new Promise(requestAnimationFrame);
    laid_out = Math.max(laid_out, [...thread.querySelectorAll(".message")].filter(isLaidOut).length);
  }
  observer.disconnect();
  return { mutations, laid_out, height: thread.scrollHeight };
}"""


COLOURED = """() => {
  const all = [...document.querySelectorAll(".markdown pre code")];
  return all.every((code) => code.querySelector("span"));
}"""
AT_THE_END = """() => {
  const { scrollHeight, scrollTop, clientHeight } = document.querySelector(".thread");
  return scrollHeight - scrollTop - clientHeight < 80;
}"""


def open_conversation(chat: ChatPage, n: int, answer: str = ANSWER, **last: object) -> dict:
    text = conversation(n, answer, **last)
    file: FilePayload = {"name": "chats.json", "mimeType": "application/json", "buffer": text.encode()}
    chat.page.get_by_label("File with chats").set_input_files(file)
    expect(chat.messages).to_have_count(n)
    while chat.page.evaluate(SCROLL)["mutations"]:  # what is drawn when it comes near stays so
        pass
    expect(chat.messages.nth(1).locator("p").first).to_be_attached()
    chat.page.wait_for_function(COLOURED)
    return chat.page.evaluate(SCROLL)


def test_two_hundred_messages_scroll_as_smoothly_as_thirty(chat):
    short = open_conversation(chat, 30)
    long = open_conversation(chat, 200)
    assert long["height"] > 5 * short["height"]
    assert long["mutations"] == 0, "nothing is drawn again"
    assert long["laid_out"] <= short["laid_out"] + 2, "what is out of sight costs nothing"


def show_conversation(chat: ChatPage, n: int) -> None:
    text = conversation(n, ANSWER).encode()
    file: FilePayload = {"name": "chats.json", "mimeType": "application/json", "buffer": text}
    chat.page.get_by_label("File with chats").set_input_files(file)
    expect(chat.messages).to_have_count(n)
    chat.page.wait_for_function(AT_THE_END)


def test_of_a_long_chat_only_what_is_near_is_drawn(chat, page):
    show_conversation(chat, 400)
    drawn = page.locator("article .markdown")
    expect(drawn.last).to_be_visible()
    assert drawn.count() < 40
    assert page.evaluate("document.querySelectorAll('*').length") < 6000
    far = chat.messages.nth(1)
    assert "number 1" in (far.text_content() or ""), "it is there as text, which browsers find:"
    assert far.evaluate("(each) => getComputedStyle(each).contentVisibility") == "auto"
    page.locator(".thread").evaluate("(thread) => (thread.scrollTop = 0)")
    expect(chat.messages.nth(1).locator("table")).to_be_visible()
    expect(chat.messages.nth(1).get_by_role("button", name="Regenerate")).to_be_attached()
    assert drawn.count() < 80


UPWARDS = """async () => {
  const thread = document.querySelector(".thread");
  const frame = () => new Promise(requestAnimationFrame);
  const topOf = (id) => document.querySelector(`article[data-id="${id}"]`).getBoundingClientRect().top;
  let nJumps = 0;
  for (let i = 0; i < 40; i++) {
    const { top, left } = thread.getBoundingClientRect();
    const id = document.elementFromPoint(left + 400, top + 200).closest("article")?.dataset.id;
    const before = id && topOf(id);
    thread.scrollTop -= 120;
    for (let n = 0; n < 3; n++) await frame();
    if (id && Math.abs(topOf(id) - before - 120) > 200) nJumps += 1;
  }
  return nJumps;
}"""


def test_what_one_reads_stays_in_place_while_what_is_above_is_drawn(chat, page):
    show_conversation(chat, 100)
    page.locator(".thread").evaluate("(thread) => thread.scrollBy(0, -300)")
    expect(page.get_by_role("button", name="To the end")).to_be_visible()
    assert page.evaluate(UPWARDS) <= 1


def test_all_of_a_conversation_is_printed(chat, page):
    show_conversation(chat, 100)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    expect(page.locator("article .markdown table")).to_have_count(50)
    page.emulate_media(media="print")
    expect(page.locator(".composer")).to_be_hidden()
    expect(page.locator(".sidebar")).to_be_hidden()
    sizes = page.evaluate(
        "[document.documentElement.scrollHeight, document.querySelector('.thread').scrollHeight]"
    )
    assert sizes[0] >= sizes[1] > 10 * 720, "no part of it scrolls"
    assert page.pdf().count(b"/Type /Page\n") > 5


def test_an_answer_changes_nothing_of_the_messages_before_it(chat, page):
    open_conversation(chat, 20, "Yes.")
    page.evaluate(
        """() => {
          window.changed = new Set();
          const note = (list) => list.forEach(({ target }) => {
            const element = target.closest ? target : target.parentElement;
            window.changed.add(element.closest("article")?.dataset.id);
          });
          const all = { childList: true, subtree: true, characterData: true };
          new MutationObserver(note).observe(document.querySelector(".thread"), all);
        }"""
    )
    chat.force("one two three four five six seven eight nine ten")
    chat.ask("Count.")
    ids = [each.get_attribute("data-id") for each in chat.messages.all()]
    changed = page.evaluate("[...window.changed]")
    assert ids[-1] in changed
    assert not set(changed) & set(ids[:-3])


GROW = """() => new Promise((resolve) => {
  const inner = document.querySelector(".thread > div");
  const first = inner.offsetHeight;
  let height = 0;
  const timer = setInterval(() => {
    inner.style.minHeight = `${first + (height += 100)}px`;
    if (height === 10000) resolve(clearInterval(timer));
  }, 4);
})"""


def test_it_follows_what_grows_faster_than_it_is_shown(chat, page):
    open_conversation(chat, 20)
    page.wait_for_function(AT_THE_END)
    page.evaluate(GROW)
    page.wait_for_function(AT_THE_END)


def test_it_follows_the_answer_unless_one_reads_above(chat, page):
    open_conversation(chat, 20, "Yes.\n\n" * 10)
    chat.never_end("\n\n")
    chat.say("Go on for ever.")
    chat.wait_for_words(10)
    page.wait_for_function(AT_THE_END)
    page.evaluate("document.querySelector('.thread').scrollTop = 100")
    expect(page.get_by_role("button", name="To the end")).to_be_visible()
    chat.wait_for_words(40)
    assert page.evaluate("document.querySelector('.thread').scrollTop") == 100
    page.get_by_role("button", name="To the end").click()
    page.keyboard.press("Escape")
    chat.wait_for_end()
    expect(chat.last).to_be_in_viewport()


CALL: dict[str, Any] = {"id": "call", "name": "look", "arguments": json.dumps({"lines": list(range(30))})}


@pytest.mark.parametrize("from_end", [0, 400])
def test_it_follows_the_answer_to_a_tool_result(chat, page, from_end):
    """From wherever the result was filled in."""
    open_conversation(chat, 20, "Yes.", toolCalls=[CALL])
    page.wait_for_function(AT_THE_END)
    chat.never_end("\n\n")
    page.get_by_role("button", name="Close the settings").click()
    page.get_by_label("Result").fill("nothing special")
    page.locator(".thread").evaluate("(thread, px) => thread.scrollBy(0, -px)", from_end)
    page.wait_for_function(AT_THE_END if from_end == 0 else f"() => !({AT_THE_END})()")
    page.get_by_role("button", name="Send the result").evaluate("(button) => button.click()")
    expect(chat.messages).to_have_count(22)
    chat.wait_for_words(40)
    page.wait_for_function(AT_THE_END)
    expect(page.get_by_role("button", name="To the end")).to_have_count(0)
    page.keyboard.press("Escape")
    chat.wait_for_end()
