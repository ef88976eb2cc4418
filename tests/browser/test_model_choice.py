"""The page of a server for many models: one is chosen, loaded, and asked."""

from __future__ import annotations

import shutil

import pytest
from playwright.sync_api import Page, expect

from tests.system.process import CorralProcess
from tests.tools.tiny_models import llama_bpe


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    shelf = tmp_path_factory.mktemp("shelf")
    first = llama_bpe(shelf).rename(shelf / "alpha.gguf")
    shutil.copy(first, shelf / "beta.gguf")
    with CorralProcess("--models-dir", shelf, "-c", 1024, "-n", 8) as server:
        yield server


def statuses(server: CorralProcess) -> dict[str, str]:
    return {row["id"]: row["status"]["value"] for row in server.get("/models").json()["data"]}


def test_a_model_is_chosen_loaded_and_asked(page: Page, many):
    page.goto(many.url)
    expect(page.get_by_text("Answers come from alpha")).to_be_visible()
    page.get_by_label("Model").select_option("beta")
    expect(page.get_by_text("Answers come from beta")).to_be_visible()
    assert statuses(many) == {"alpha": "loaded", "beta": "loaded"}
    with page.expect_response(lambda response: "/v1/chat/completions" in response.url) as sent:
        page.get_by_role("textbox", name="Message").fill("Hello")
        page.keyboard.press("Enter")
    assert sent.value.status == 200
    assert "model=beta" in sent.value.url


def test_the_choice_is_remembered(page: Page, many):
    page.goto(many.url)
    page.get_by_label("Model").select_option("beta")
    expect(page.get_by_text("Answers come from beta")).to_be_visible()
    page.reload()
    expect(page.get_by_text("Answers come from beta")).to_be_visible()
