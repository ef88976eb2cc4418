"""`/docs` in a browser: it shows the API, and loads nothing from anywhere else."""

from __future__ import annotations

import io
from typing import cast

import pytest
from PIL import Image, ImageColor
from playwright.sync_api import expect

from tests.system.process import CorralProcess


@pytest.fixture(scope="module")
def tiny(models):
    with CorralProcess("-m", models / "llama-bpe.gguf", "-c", 256, "--no-ui") as server:
        yield server


def test_the_api_can_be_read_and_tried(page, tiny):
    page.goto(tiny.url + "/docs")
    expect(page.get_by_role("heading", name="Corral").first).to_be_visible()
    assert page.locator(".opblock-summary-path").first.inner_text() == "/v1/chat/completions"
    route = page.locator("[id$=-getHealth]")
    route.get_by_role("button").first.click()
    route.get_by_role("button", name="Try it out").click()
    route.get_by_role("button", name="Execute").click()
    expect(route.locator(".live-responses-table")).to_contain_text('"status": "ok"')


def test_it_follows_the_theme_of_the_browser(page, tiny):
    """Also when that changes while the page is open."""
    page.emulate_media(color_scheme="light")
    page.goto(tiny.url + "/docs")
    expect(page.get_by_role("heading", name="Corral").first).to_be_visible()
    light = brightness(page)
    page.emulate_media(color_scheme="dark")
    expect(page.locator("html.dark-mode")).to_be_attached()
    dark = brightness(page)
    assert dark["page"] < 60 < 200 < light["page"]
    assert light["text"] < 100 < 180 < dark["text"]


def brightness(page) -> dict[str, float]:
    """Of the page as it is shown, and of its title, from 0 to 255."""
    corner = Image.open(io.BytesIO(page.screenshot(clip={"x": 0, "y": 0, "width": 4, "height": 4})))
    title = page.locator(".info .title").first
    color = title.evaluate("(element) => getComputedStyle(element).color")
    text = ImageColor.getrgb(color)
    gray = cast(float, corner.convert("L").getpixel((1, 1)))
    return {"page": gray, "text": sum(text[:3]) / 3}


def test_without_a_page_there_is_none(page, problems, tiny):
    problems.allow("404")
    response = page.goto(tiny.url)
    assert response.status == 404
    assert "File Not Found" in page.content()
