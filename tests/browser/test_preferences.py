"""What a person has asked their system for: more contrast, forced colours, less motion."""

from __future__ import annotations

import httpx
import pytest
from playwright.sync_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.contrast import CONTRASTS
from tests.browser.look import show_answer
from tests.system.process import START_S

MORE_CONTRAST = 7  # WCAG 2.2, level AAA
MOVING = """() => {
  const parts = ["", "::before", "::after"];
  const stylesOf = (each) => parts.map((part) => getComputedStyle(each, part));
  const moves = (style) => style.animationName !== "none" || /[1-9]/.test(style.transitionDuration);
  return [...document.querySelectorAll("*")].flatMap(stylesOf).filter(moves).length;
}"""
TEXTS = "p, h1, h2, h3, a, label, .said, .timings span, button:enabled"
HAS_TEXT = "(each) => each.textContent.trim() && each.checkVisibility()"


def text_contrasts() -> str:
    """A script as `CONTRASTS`, for texts instead of placeholders."""
    script = CONTRASTS.replace(', "::placeholder")', ")").replace('"input, textarea"', f'"{TEXTS}"')
    script = script.replace("({ placeholder }) => placeholder", HAS_TEXT)
    return script.replace("each.placeholder", "each.textContent.trim().slice(0, 40)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_more_contrast(new_page, corral, scheme):
    chat = ChatPage(new_page(color_scheme=scheme, contrast="more"), corral.url).open()
    show_answer(chat, "Some text.", state="failed", error="It failed.")
    chat.open_settings()
    found = chat.page.evaluate(text_contrasts())
    assert len(found) > 20
    assert not {text: ratio for text, ratio in found.items() if ratio < MORE_CONTRAST}


def test_forced_colours_leave_nothing_that_only_a_background_says(new_page, corral):
    chat = ChatPage(new_page(forced_colors="active"), corral.url).open()
    show_answer(chat, "Some text.", state="failed", error="It failed.")
    chat.open_settings()
    page = chat.page
    for marked in (".message.user .said", ".ending.bad"):
        assert (
            page.locator(marked).first.evaluate("(each) => getComputedStyle(each).borderTopStyle") == "solid"
        ), marked
    for chosen in ('.head [aria-pressed="true"]', '.entry [aria-current="page"]'):
        assert page.locator(chosen).evaluate("(each) => getComputedStyle(each).outlineStyle") == "solid", (
            chosen
        )


@pytest.mark.parametrize(("motion", "moves"), [("no-preference", True), ("reduce", False)])
def test_nothing_moves_for_those_who_do_not_want_it(new_page, corral, motion, moves):
    chat = ChatPage(new_page(reduced_motion=motion), corral.url).open()
    chat.page.route("**/v1/chat/completions", lambda route: None)  # an answer that is waited for
    chat.say("Hello")
    chat.page.locator("article .writing").first.wait_for()
    assert bool(chat.page.evaluate(MOVING)) == moves


MONITOR_TEXTS = "p, h1, h2, a, dt, strong, th, td, li, .soft, .name, button:enabled"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_more_contrast_in_the_monitor(new_page, corral, scheme):
    page = new_page(color_scheme=scheme, contrast="more")
    body = {"prompt": "1 2 3", "n_predict": 2}
    httpx.post(corral.url + "/completion", json=body, timeout=START_S).raise_for_status()
    page.goto(corral.url + "/monitor")
    expect(page.locator(".requests tbody tr").first).to_be_visible()
    contrasts = text_contrasts().replace(TEXTS, MONITOR_TEXTS)
    page.wait_for_function(f"() => Object.keys(({contrasts})()).length > 40")
    found = page.evaluate(contrasts)
    assert not {text: ratio for text, ratio in found.items() if ratio < MORE_CONTRAST}


def test_forced_colours_leave_the_marks_of_the_monitor(new_page, corral):
    page = new_page(forced_colors="active")
    page.goto(corral.url + "/monitor")
    expect(page.locator(".status[data-state=ready]")).to_be_visible()
    for mark in (".legend .prefill", ".legend .decode"):
        colour = page.locator(mark).first.evaluate(
            "(each) => getComputedStyle(each, '::before').backgroundColor"
        )
        assert colour != page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert page.locator(".lane").first.evaluate("(each) => getComputedStyle(each).borderTopStyle") == "solid"
