"""One request in the monitor, and usage, in Chromium."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.look import PHONE, is_inside
from tests.browser.test_monitor import open_monitor, serve, show_key
from tests.system.process import START_S, CorralProcess

PROMPT = "three foxes and a river, and not one of them could swim " * 20


@pytest.fixture(scope="module")
def server(models) -> Iterator[CorralProcess]:
    with serve(models, "-t", 1) as server:
        server.complete(prompt=PROMPT, n_predict=8, ignore_eos=True, id_slot=0)
        server.complete(prompt=PROMPT + "but the fourth", n_predict=8, ignore_eos=True, id_slot=0)
        yield server


def open_request(page: Page, i: int = 0) -> Locator:
    """The details of the i-th last request."""
    page.locator(".requests tbody tr").nth(i).get_by_role("button").click()
    dialog = page.locator("dialog.detail")
    expect(dialog.locator(".flame")).to_be_visible()
    return dialog


def test_a_request_opens_with_its_phases_and_reasons(page, server):
    dialog = open_request(open_monitor(page, server))
    for kind in ("prepare", "queue", "prefix", "prompt", "decode", "send"):
        expect(dialog.locator(f".flame-bar.phase-{kind}")).to_have_count(1)
        expect(dialog.locator(f".phases th.phase-{kind}")).to_be_visible()
    expect(dialog.get_by_role("row", name="answer")).to_contain_text("8")
    assert dialog.locator(".why li").count() == 0
    dialog.get_by_role("button", name="Why slow?").click()
    expect(dialog.locator("[data-code=total]")).to_be_visible()
    dialog.get_by_role("button", name="Why not cached?").click()
    expect(dialog.locator("[data-code=cached]")).to_contain_text("(source: same slot)")
    bars = dialog.locator(".bars").first.bounding_box()
    for bar in dialog.locator(".flame-bar").all():
        box = bar.bounding_box()
        assert box["height"] >= 0.3 * bars["height"]
        assert bars["x"] - 1 <= box["x"]
        assert box["x"] + box["width"] <= bars["x"] + bars["width"] + 3
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    dialog = open_request(page, 1)
    dialog.get_by_role("button", name="Why not cached?").click()
    expect(dialog.locator("[data-code=uncached]")).to_be_visible()
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)


def test_its_reasons_are_in_the_language_of_the_page(new_page, server):
    page = new_page(locale="de-DE")
    page.goto(server.url + "/monitor")
    dialog = open_request(page)
    for name in ("Warum langsam?", "Warum nicht im Cache?"):
        dialog.get_by_role("button", name=name).click()
    expect(dialog.locator("[data-code=total]")).to_have_text(
        re.compile(r"^Sie dauerte insgesamt [\d,.]+ m?s\.$")
    )
    expect(dialog.locator("[data-code=cached]")).to_have_text(
        re.compile(r"^Von [\d.]+ Tokens? waren [\d.]+ \(\d+\s%\) im Cache \(Quelle: selber Slot\)")
    )
    expect(dialog.locator(".why li", has_text="{")).to_have_count(0)


def test_the_ledger(page, server):
    open_monitor(page, server)
    usage = page.locator("section.usage")
    assert usage.get_by_role("table").count() == 0
    usage.locator("summary").click()
    expect(usage.get_by_role("row")).to_have_count(2)
    expect(usage.get_by_role("rowheader")).to_have_text(re.compile(r"\d{4}-\d\d-\d\d"))


def test_it_fits_a_phone(new_page, server):
    page = open_monitor(new_page(**PHONE), server)
    page.locator("section.usage summary").click()
    expect(page.locator("section.usage").get_by_role("table")).to_be_visible()
    dialog = open_request(page)
    for name in ("Why slow?", "Why not cached?"):
        dialog.get_by_role("button", name=name).click()
    expect(dialog.locator("[data-code=total]")).to_be_visible()
    assert is_inside(dialog)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert dialog.evaluate("(each) => each.scrollWidth <= each.clientWidth")


def test_keys_see_their_own_and_administrators_all(page, problems, models, tmp_path):
    problems.allow("401|404|ERR_")
    keys = Path(tmp_path / "keys")
    keys.write_text("amy:sk-amy\nben:sk-ben\nchief,admin:sk-chief\n")
    with serve(models, "-t", 1, "--api-key-file", keys) as server:
        for name in ("amy", "ben"):
            body = {"prompt": "Hello", "n_predict": 2}
            headers = {"authorization": f"Bearer sk-{name}"}
            httpx.post(
                server.url + "/completion", json=body, headers=headers, timeout=START_S
            ).raise_for_status()
        page.goto(server.url + "/monitor")
        show_key(page, "sk-amy")
        row = page.locator("section.usage tbody tr")
        page.locator("section.usage summary").click()
        expect(row).to_have_count(1)
        expect(row).to_contain_text("amy")
        page.locator(".requests tbody tr", has_text="ben").get_by_role("button").click()
        expect(page.locator("dialog.detail .error")).to_be_visible()
        page.evaluate("localStorage.setItem('corral.key', 'sk-chief')")
        page.reload()
        page.locator("section.usage summary").click()
        expect(row).to_have_count(2)
        page.locator(".requests tbody tr", has_text="ben").get_by_role("button").click()
        expect(page.locator("dialog.detail .flame")).to_be_visible()
