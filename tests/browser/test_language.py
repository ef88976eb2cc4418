"""The page in other languages, and in both directions of writing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.chat_page import ChatPage
from tests.browser.look import show_answer
from tests.system.process import START_S

TEXTS = Path(__file__).parents[2] / "corral" / "webui" / "text"
LOCALES = {"de-AT": "de", "fr-CA": "fr", "es-MX": "es", "zh-CN": "zh-Hans", "ja-JP": "ja", "nl-NL": "en"}
ARABIC = "مرحبا، ما هو Corral؟"


def text(language: str, key: str) -> str:
    files = [TEXTS / f"{language}.json", TEXTS / "more" / f"{language}.json"]
    return next(texts[key] for file in files if key in (texts := json.loads(file.read_text())))


def open_page(page: Page, url: str) -> ChatPage:
    page.goto(url)
    chat = ChatPage(page, url)
    chat.wait_until_ready()
    return chat


@pytest.mark.parametrize(("locale", "language"), LOCALES.items())
def test_it_speaks_the_language_of_the_browser_and_loads_only_that(new_page, corral, locale, language):
    page = new_page(locale=locale)
    loaded: list[str] = []
    page.on("request", lambda request: loaded.extend(re.findall(r"/text/(.+)\.json", request.url)))
    open_page(page, corral.url)
    assert loaded == [language]
    assert page.locator("html").get_attribute("lang") == language
    expect(page.get_by_label(text(language, "composer.yourMessage"))).to_be_visible()
    expect(page.get_by_role("heading", name=text(language, "thread.welcome"))).to_be_visible()


def test_a_language_can_be_chosen_and_is_remembered(new_page, corral):
    page = new_page(locale="de-DE")
    open_page(page, corral.url)
    page.get_by_role("button", name=text("de", "app.settings"), exact=True).click()
    page.get_by_label(text("de", "settings.language")).select_option("ja")
    box = page.get_by_label(text("ja", "composer.yourMessage"))
    expect(box).to_be_visible()
    page.reload()
    expect(box).to_be_visible()
    assert page.evaluate("localStorage.getItem('corral.language')") == "ja"


def test_without_the_file_of_a_language_it_is_english(new_page, corral, problems):
    problems.allow("404|Failed to load")
    page = new_page(locale="fr-FR")
    page.route("**/text/fr.json", lambda route: route.fulfill(status=404, body="{}"))
    ChatPage(page, corral.url).open()
    assert page.locator("html").get_attribute("lang") == "en"


SIZES = [{"width": 360, "height": 740}, {"width": 1280, "height": 800}]
UNMARKED = r"""() => {
  const OWN = "noscript, kbd, .brand, .model, .author[dir], strong, option[lang], [data-own], textarea, h1"
    + ", .entry a, .requests th[title], .keys td, .keys tbody th, dialog h2";
  const isShown = (each) => each.checkVisibility({ visibilityProperty: true });
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const { data, parentElement } = node;
    const isText = isShown(parentElement) && !parentElement.closest(OWN) && /[A-Za-z]{2}/.test(data);
    const isKey = /^(?:(?:Alt|Ctrl)\+.|Esc|F32|[\d.,]+ kB)$/.test(data);
    if (isText && !isKey && !data.includes("¤")) found.push(data.trim());
  }
  for (const each of document.querySelectorAll("[aria-label], [placeholder], [title]")) {
    for (const name of ["aria-label", "placeholder", "title"]) {
      const value = each.getAttribute(name) ?? "";
      const isOwn = each.closest(".model, .entry a") || each.matches(".requests th");
      if (!isOwn && /[A-Za-z]{2}/.test(value) && !value.includes("¤")) found.push(`${name}: ${value}`);
    }
  }
  return found;
}"""


def marked(value: object) -> object:
    """The English texts with a mark in each, as of another language."""
    if isinstance(value, dict):
        return {key: marked(each) for key, each in value.items()}
    return "¤" + str(value).replace("}", "}¤")  # elements divide a text


def mark_texts(page: Page, folder: str) -> None:
    texts = marked(json.loads((TEXTS / folder / "en.json").read_text()))
    page.route(f"**/text/{folder}de.json", lambda route: route.fulfill(json=texts))


def test_nothing_on_the_page_is_without_translation(new_page, corral):
    """With a language whose texts have a mark: what has none on the page comes from elsewhere."""
    page = new_page(locale="de-DE")
    mark_texts(page, "")
    mark_texts(page, "more/")
    page.goto(corral.url)
    box = page.get_by_label("¤Your message")
    expect(page.get_by_text("¤runs on this server")).to_be_visible()
    page.get_by_role("button", name="¤Settings", exact=True).click()
    page.get_by_label("¤Max tokens", exact=True).fill("3")
    page.locator(".settings details").evaluate_all("(all) => all.forEach((each) => (each.open = true))")
    assert page.evaluate(UNMARKED) == []
    box.fill("1 2 3")
    box.press("Enter")
    expect(page.locator("article .timings")).to_be_visible()
    expect(page.get_by_role("button", name="¤Send", exact=True)).to_be_visible()
    expect(page.locator("article .markdown")).to_be_attached()
    page.evaluate("document.querySelectorAll('.markdown, .said').forEach((each) => (each.dataset.own = ''))")
    assert page.evaluate(UNMARKED) == []
    for key in ("Alt+/", "Control+k"):
        page.keyboard.press(key)
        expect(page.get_by_role("dialog")).to_be_visible()
        page.locator(".palette li:has-text('1 2 3')").evaluate_all(
            "(all) => all.forEach((each) => each.remove())"
        )
        assert page.evaluate(UNMARKED) == []
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.fixture
def chat(page, corral) -> ChatPage:
    return ChatPage(page, corral.url).open()


def test_a_text_has_the_direction_of_its_language(chat):
    answer = show_answer(chat, f"{ARABIC}\n\n- {ARABIC}\n\n```\ncode\n```\n\nEnglish again.")
    direction = "(each) => getComputedStyle(each).direction"
    assert answer.locator(".markdown").evaluate(direction) == "rtl"
    assert answer.locator("pre").evaluate(direction) == "ltr"
    right = "(each) => each.getBoundingClientRect().right"
    marker = answer.locator("ul").evaluate("(each) => parseFloat(getComputedStyle(each).paddingRight)")
    assert marker > 0, "the marks of a list are where its lines begin"
    assert answer.evaluate(right) > 0
    chat.box.fill(ARABIC)
    assert chat.box.evaluate(direction) == "rtl"
    assert chat.page.locator(".head h1").evaluate(direction) == "ltr"


PLACES = """() => Object.fromEntries(
  ["sidebar", "thread-frame", "settings", "round", "search .icon"].map((name) => {
    const { left, right } = document.querySelector(`.${name}`).getBoundingClientRect();
    return [name, [left, right]];
  }),
)"""


@pytest.mark.parametrize("size", SIZES, ids=["phone", "desktop"])
def test_the_page_can_be_mirrored(new_page, corral, size):
    chat = ChatPage(new_page(viewport=size), corral.url).open()
    page, width = chat.page, size["width"]
    chat.open_settings()
    before = page.evaluate(PLACES)
    page.evaluate("document.documentElement.dir = 'rtl'")
    after = page.evaluate(PLACES)
    for name, (left, right) in before.items():
        mirrored = [width - right, width - left] if right else [left, right]  # not those that are hidden
        assert after[name] == pytest.approx(mirrored, abs=20), name  # a scroll bar may change sides
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("size", SIZES, ids=["phone", "desktop"])
def test_nothing_on_the_monitor_is_without_translation(new_page, corral, size):
    page = new_page(locale="de-DE", viewport=size)
    mark_texts(page, "")
    mark_texts(page, "monitor/")
    httpx.post(
        corral.url + "/completion", json={"prompt": "1 2 3", "n_predict": 2}, timeout=START_S
    ).raise_for_status()
    page.goto(corral.url + "/monitor")
    expect(page.locator(".status[data-state=ready]")).to_contain_text("¤Ready since")
    assert page.title() == "¤Monitor · Corral"
    page.locator(".usage summary").click()
    page.locator(".requests tbody").get_by_role("button").first.click()
    expect(page.locator("dialog .flame")).to_be_visible()
    for each in page.locator("dialog .why button").all():
        each.click()
    assert page.evaluate(UNMARKED) == []


@pytest.mark.parametrize("language", sorted(set(LOCALES.values())))
def test_the_monitor_fits_a_phone_in_every_language(new_page, corral, language):
    page = new_page(locale=language, viewport=SIZES[0])
    page.goto(corral.url + "/monitor")
    expect(page.locator(".status[data-state=ready]")).to_be_visible()
    assert page.locator("html").get_attribute("lang") == language
    monitor = json.loads((TEXTS / "monitor" / f"{language}.json").read_text())
    expect(page.get_by_role("heading", name=monitor["request.title"])).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
