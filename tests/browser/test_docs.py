"""`/docs` in a browser: it shows the API, and loads nothing from anywhere else."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.system.process import CorralProcess


@pytest.fixture(scope="module")
def tiny(models):
    with CorralProcess("-m", models / "llama-bpe.gguf", "-c", 256, "--no-ui") as server:
        yield server


def test_the_api_can_be_read_and_tried(page, tiny):
    page.goto(tiny.url + "/docs")
    expect(page.get_by_role("heading", name="Corral").first).to_be_visible()
    route = page.locator("#operations-native-health_health_get")
    route.get_by_role("button").first.click()
    route.get_by_role("button", name="Try it out").click()
    route.get_by_role("button", name="Execute").click()
    expect(route.locator(".live-responses-table")).to_contain_text('"status": "ok"')


def test_without_a_page_there_is_none(page, problems, tiny):
    problems.allow("404")
    response = page.goto(tiny.url)
    assert response.status == 404
    assert "File Not Found" in page.content()
