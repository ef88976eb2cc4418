"""The page of a server for many models: one is chosen, loaded, and asked; two are compared."""

from __future__ import annotations

import re
import shutil

import pytest
from playwright.sync_api import Page, expect

from tests.browser.chat_page import ChatPage
from tests.browser.look import PHONE
from tests.system.downloads import serve_downloads
from tests.system.process import CorralProcess
from tests.tools.tiny_encoders import bert_embed
from tests.tools.tiny_models import llama_bpe


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    shelf = tmp_path_factory.mktemp("shelf")
    first = llama_bpe(shelf).rename(shelf / "alpha.gguf")
    shutil.copy(first, shelf / "beta.gguf")
    with CorralProcess("--models-dir", shelf, "-c", 1024, "-n", 8, "--ignore-eos", "-cram", 16) as server:
        yield server


def statuses(server: CorralProcess) -> dict[str, str]:
    return {row["id"]: row["status"]["value"] for row in server.get("/models").json()["data"]}


def test_a_model_is_chosen_loaded_and_asked(page: Page, many):
    page.goto(many.url)
    expect(page.locator(".identity strong")).to_have_text("alpha")
    page.get_by_role("combobox", name="Model", exact=True).select_option("beta")
    expect(page.locator(".identity strong")).to_have_text("beta")
    assert statuses(many) == {"alpha": "unloaded", "beta": "loaded"}, "a visit loads nothing"
    with page.expect_response(lambda response: "/v1/chat/completions" in response.url) as sent:
        ChatPage(page, many.url).ask("Hello")
    assert sent.value.status == 200
    assert "model=beta" in sent.value.url


def test_each_chat_remembers_its_model_and_the_page_the_last_one(page: Page, many):
    chat = ChatPage(page, many.url).open()
    choice = page.get_by_role("combobox", name="Model", exact=True)
    choice.select_option("beta")
    expect(choice).to_have_value("beta")
    chat.wait_until_ready()
    chat.ask("Of beta")
    page.get_by_role("button", name="New chat", exact=True).click()
    choice.select_option("alpha")
    expect(page.locator(".identity strong")).to_have_text("alpha")
    page.get_by_role("link", name="Of beta").click()
    expect(choice).to_have_value("beta")
    page.reload()
    expect(choice).to_have_value("beta")


def test_the_list_has_sizes_and_states_and_loads_and_unloads(page: Page, many, problems):
    problems.allow(r"status of 501")
    ChatPage(page, many.url).open()
    expect(page.get_by_role("option", name=re.compile("alpha · .*B · loaded"))).to_be_attached()
    page.get_by_role("button", name="Models", exact=True).click()
    row = page.get_by_role("row", name=re.compile("^beta"))
    expect(row.get_by_role("cell").first).to_have_text(re.compile("B$"))
    for label, state in (("Unload beta", "unloaded"), ("Load beta", "loaded")):
        if row.get_attribute("data-state") != state:
            row.get_by_role("button", name=label, exact=True).click()
        expect(row).to_have_attribute("data-state", state)
    page.get_by_label("Model to download").fill("user/model")
    page.get_by_role("button", name="Download", exact=True).click()
    page.get_by_role("button", name="Close", exact=True).click()
    expect(page.get_by_text("This server downloads no models.")).to_be_visible()


def test_the_list_fits_a_phone(new_page, many):
    page = new_page(**PHONE)
    ChatPage(page, many.url).open()
    page.get_by_role("button", name="Models", exact=True).click()
    expect(page.get_by_role("row", name=re.compile("^beta"))).to_be_visible()
    assert page.locator("dialog.models").evaluate(
        "(each) => [each.scrollLeft, each.scrollWidth - each.clientWidth]"
    ) == [0, 0]


def test_two_models_answer_side_by_side(page: Page, many):
    ChatPage(page, many.url).open()
    page.get_by_role("button", name="Models", exact=True).click()
    page.get_by_role("button", name="Compare two").click()
    page.get_by_label("Prompt for both models").fill("Hello")
    page.get_by_role("button", name="Ask both").click()
    for side in ("First model", "Second model"):
        section = page.get_by_role("region", name=side)
        expect(section.locator(".timings")).to_contain_text("8 tokens")
    names = [page.get_by_role("combobox", name=f"{each} model").input_value() for each in ("First", "Second")]
    assert sorted(names) == ["alpha", "beta"]
    expect(page.get_by_role("button", name="Ask both")).to_be_visible()


def test_the_monitor_has_lanes_for_each_model_and_the_memory_of_all(page: Page, many):
    for name in ("alpha", "beta"):
        many.complete(model=name, prompt="Hello", n_predict=4)
    page.goto(f"{many.url}/monitor")
    for name in ("alpha", "beta"):
        lanes = page.get_by_role("region", name=name, exact=True)
        expect(lanes.get_by_role("group", name="Slot 0")).to_be_visible()
        expect(lanes.locator(".piece").first).to_be_attached()
    for field in ("needed", "used"):
        expect(page.locator(f"[data-memory={field}]")).to_have_text(re.compile("[MG]iB$"))
    assert page.locator(".memory").first.locator("i").count() == 2


def test_the_first_model_is_downloaded_on_the_page(page: Page, models, tmp_path, problems):
    problems.allow("ERR_")  # the page still looks for news while the server stops
    with serve_downloads(models / "llama-bpe.gguf", tmp_path) as server:
        page.goto(server.url)
        page.get_by_role("button", name="Models", exact=True).click()
        page.get_by_label("Model to download").fill("user/m:Q4_K_M")
        page.get_by_role("button", name="Download", exact=True).click()
        row = page.locator("tr", has_text="user/m:Q4_K_M")
        expect(row).to_have_attribute("data-state", re.compile("unloaded|loading|loaded"))
        page.get_by_role("button", name="Close", exact=True).click()
        expect(page.locator(".identity strong")).to_have_text("tiny llama-bpe")


def test_models_that_do_not_chat_are_not_offered_for_it(page: Page, tmp_path):
    bert_embed(tmp_path).rename(tmp_path / "a-embedding.gguf")
    llama_bpe(tmp_path).rename(tmp_path / "chat.gguf")
    with CorralProcess("--models-dir", tmp_path, "-c", 512, "-n", 8, "--ignore-eos", "-cram", 16) as server:
        chat = ChatPage(page, server.url).open()
        expect(page.locator(".identity strong")).to_have_text("tiny llama-bpe")
        choice = page.get_by_role("combobox", name="Model", exact=True)
        expect(choice.locator("optgroup:not([disabled]) option")).to_have_text([re.compile("^chat ")])
        expect(choice.locator("optgroup[label='Not for chat'][disabled] option")).to_have_text(
            [re.compile("^a-emb")]
        )
        assert set(statuses(server).values()) == {"unloaded"}, "a visit loads nothing"
        assert chat.ask("Hello!")
        assert statuses(server) == {"a-embedding": "unloaded", "chat": "loaded"}
        page.get_by_role("button", name="Models", exact=True).click()
        expect(page.get_by_role("row", name=re.compile("^a-embedding embedding"))).to_be_visible()
        page.get_by_role("button", name="Close", exact=True).click()
